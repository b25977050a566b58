import com.fasterxml.jackson.databind.JsonNode;
import jakarta.jms.*;
import jakarta.jms.Queue;
import java.util.*;
import org.apache.qpid.jms.JmsConnectionFactory;

/** Facts, asked of JMS by Qpid: {@code java Jms FACTS SETTINGS [part of a title]}. */
final class Jms extends Bare<Message, MessageConsumer, Session, Connection> {
    /** How a message is settled: a mode of sessions, and a property of messages, of Qpid's own. */
    private static final int EACH_ALONE = 101;
    private static final String OUTCOME = "JMS_AMQP_ACK_TYPE";
    private static final int ACCEPTED = 1, REJECTED = 2, FAILED = 4, UNDELIVERABLE = 5;

    private final Map<String, Destination> made = new HashMap<>();
    private Session session;

    public static void main(String[] words) throws Exception {
        Table.run(words, Jms::new);
    }

    private Connection connect(String more) throws JMSException {
        JsonNode key = Table.keyOf(way);
        String scheme = Map.of("tls", "amqps", "websocket", "amqpwss").getOrDefault(way, "amqp");
        String path = way.equals("websocket") ? "/$servicebus/websocket/" : "";
        String at = scheme + "://" + Table.text(Table.settings, "host") + ":" + Table.settings.get("port").asText() + path;
        // It takes no more than what is asked for, and shows all that it has, as dead letters that have expired.
        var connection = keep(
            new JmsConnectionFactory(key.get(0).asText(), key.get(1).asText(), at + "?jms.prefetchPolicy.all=0&jms.localMessageExpiry=false" + more)
                .createConnection());
        connection.start();
        return connection;
    }

    private Session session(JsonNode step) throws JMSException {
        if (step.has("transaction")) return transactions.get(Table.text(step, "transaction"));
        if (session == null) session = connect("").createSession(EACH_ALONE);
        return session;
    }

    @Override
    public String nameOf(Throwable error) {
        if (error instanceof JMSSecurityException) return "Unauthorized";
        return Table.conditionOf(String.valueOf(error.getMessage()));
    }

    private Destination destination(Session of, String name) throws JMSException {
        return made.containsKey(name) ? made.get(name) : of.createQueue(name);
    }

    private void send(JsonNode step) throws JMSException {
        if (step.has("batch")) throw new Table.Impossible("batches");
        var of = session(step);
        var producer = of.createProducer(destination(of, Table.text(step, "to")));
        for (JsonNode form : step.get("messages")) {
            for (String name : List.of("id", "to", "contentType", "partitionKey", "scheduled")) {
                if (form.has(name)) throw new Table.Impossible(name);
            }
            var one = of.createBytesMessage();
            one.writeBytes(Table.bodyOf(form).getBytes());
            if (form.has("subject")) one.setJMSType(Table.text(form, "subject"));
            if (form.has("correlation")) one.setJMSCorrelationID(Table.text(form, "correlation"));
            if (form.has("replyTo")) one.setJMSReplyTo(destination(of, Table.text(form, "replyTo")));
            if (form.has("replyToSession")) one.setStringProperty("JMS_AMQP_REPLY_TO_GROUP_ID", Table.text(form, "replyToSession"));
            if (form.has("session")) one.setStringProperty("JMSXGroupID", Table.text(form, "session"));
            for (var each : Table.properties(form).entrySet()) one.setObjectProperty(each.getKey(), each.getValue());
            producer.setTimeToLive(form.path("ttl").asLong(0) * 1000);
            producer.send(one);
        }
        producer.close();
    }

    private static Map<String, Object> formOf(Message one) throws JMSException {
        var form = new LinkedHashMap<String, Object>();
        byte[] body = one.getBody(byte[].class);
        String text = new String(body == null ? new byte[0] : body);
        form.put("body", text);
        form.put("length", text.length());
        form.put("subject", one.getJMSType());
        form.put("correlation", one.getJMSCorrelationID());
        form.put("replyTo", one.getJMSReplyTo() instanceof Queue queue ? queue.getQueueName() : null);
        form.put("session", one.getStringProperty("JMSXGroupID"));
        form.put("count", one.getIntProperty("JMSXDeliveryCount") - 1);
        form.put("reason", one.getStringProperty("DeadLetterReason"));
        form.put("description", one.getStringProperty("DeadLetterErrorDescription"));
        var properties = new LinkedHashMap<String, Object>();
        for (var name : Collections.list((Enumeration<?>) one.getPropertyNames())) {
            properties.put((String) name, one.getObjectProperty((String) name));
        }
        form.put("properties", properties);
        return form;
    }

    /** What the table wants to see of messages, and JMS does not show. */
    private static void refuse(JsonNode see) {
        for (JsonNode one : see) {
            for (String name : List.of("number", "state", "source")) if (one.has(name)) throw new Table.Impossible(name);
        }
    }

    private List<Map<String, Object>> formsOf(JsonNode step, List<Message> messages) throws JMSException {
        held.put(step.path("as").asText(), messages);
        var forms = new ArrayList<Map<String, Object>>();
        for (var one : messages) forms.add(formOf(one));
        return forms;
    }

    private List<Map<String, Object>> receive(JsonNode step) throws JMSException {
        if (step.has("session")) throw new Table.Impossible("session");
        refuse(step.path("see"));
        String from = Table.text(step, "from"), mode = step.path("mode").asText(), key = from + mode + step.path("transaction").asText();
        if (!receivers.containsKey(key)) {
            var of = mode.isEmpty() ? session(step) : connect("&jms.presettlePolicy.presettleConsumers=true").createSession();
            receivers.put(key, of.createConsumer(destination(of, from)));
        }
        int count = Math.max(step.path("see").size(), 1);
        long end = System.currentTimeMillis() + (step.path("see").size() > 0 ? Table.LONG : Table.SHORT);
        var arrived = new ArrayList<Message>();
        while (arrived.size() < count && System.currentTimeMillis() < end) {
            var one = receivers.get(key).receive(Math.max(end - System.currentTimeMillis(), 1));
            if (one != null) arrived.add(one);
        }
        return formsOf(step, arrived);
    }

    private List<Map<String, Object>> browse(JsonNode step) throws JMSException {
        refuse(step.path("see"));
        var of = session(step);
        var browser = of.createBrowser((Queue) destination(of, Table.text(step, "from")));
        var messages = new ArrayList<Message>();
        for (var one : Collections.list((Enumeration<?>) browser.getEnumeration())) messages.add((Message) one);
        browser.close();
        return formsOf(step, messages);
    }

    private void settle(JsonNode step, int outcome) throws JMSException {
        for (String name : List.of("properties", "reason", "description")) {
            if (step.has(name)) throw new Table.Impossible(name + " of a settlement");
        }
        // What a session in a transaction receives is settled with it.
        if (step.has("transaction")) return;
        for (var one : held.get(Table.text(step, "messages"))) {
            one.setIntProperty(OUTCOME, outcome);
            one.acknowledge();
        }
        // Nothing tells when the server has done it. But what is asked next on the session comes after.
        session.createTemporaryQueue().delete();
    }

    @Override
    void forget() {
        session = null;
    }

    @Override
    Object act(String verb, JsonNode step) throws Exception {
        switch (verb) {
            case "send" -> send(step);
            case "receive" -> {
                return receive(step);
            }
            case "peek" -> {
                return browse(step);
            }
            case "complete" -> settle(step, ACCEPTED);
            case "abandon" -> settle(step, FAILED);
            case "defer" -> settle(step, UNDELIVERABLE);
            case "dead-letter" -> settle(step, REJECTED);
            case "begin" -> transactions.put(Table.text(step, "as"), connect("").createSession(Session.SESSION_TRANSACTED));
            case "commit" -> transactions.get(Table.text(step, "transaction")).commit();
            case "rollback" -> transactions.get(Table.text(step, "transaction")).rollback();
            case "select" -> {
                var of = session(step);
                of.createConsumer(of.createQueue(Table.text(step, "from")), Table.text(step, "selector"));
            }
            case "dynamic" -> {
                var queue = session(step).createTemporaryQueue();
                addresses.put(Table.text(step, "as"), queue.getQueueName());
                made.put(queue.getQueueName(), queue);
            }
            default -> throw new Table.Impossible(verb);
        }
        return null;
    }
}
