import com.fasterxml.jackson.databind.JsonNode;
import com.rabbitmq.qpid.protonj2.client.*;
import com.rabbitmq.qpid.protonj2.client.exceptions.*;
import com.rabbitmq.qpid.protonj2.types.UnsignedInteger;
import com.rabbitmq.qpid.protonj2.types.UnsignedLong;
import java.util.*;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;

/**
 * Facts, asked of RabbitMQ's AMQP 1.0 client for Java: {@code java Rabbit FACTS SETTINGS [part of a title]}.
 *
 * <p>What it adds for RabbitMQ's queues refuses other servers, so this is the client below, which its jar has.
 */
final class Rabbit extends Bare<Delivery, Receiver, Session, Connection> {
    private static final String FILTER = "com.microsoft:session-filter", TIMEOUT = "com.microsoft:timeout";
    private static final UnsignedLong SESSIONS = UnsignedLong.valueOf(83_483_426_828L);
    private static final Client CLIENT = Client.create();
    private static final DeliveryState FAILED = DeliveryState.modified(true, false);

    private final Map<String, Receiver> sessions = new HashMap<>();
    private Connection connection;

    public static void main(String[] words) throws Exception {
        Table.run(words, Rabbit::new);
    }

    private Connection connection() throws ClientException {
        if (connection != null) return connection;
        // What it depends on has no web sockets.
        if (way.equals("websocket")) throw new Table.Impossible(way);
        JsonNode key = Table.keyOf(way);
        var options = new ConnectionOptions().user(key.get(0).asText()).password(key.get(1).asText())
            .reconnectEnabled(false).sslEnabled(way.equals("tls"));
        options.saslOptions().addAllowedMechanism("PLAIN");
        connection = keep(CLIENT.connect(Table.text(Table.settings, "host"), Table.settings.get("port").asInt(), options));
        return connection;
    }

    @Override
    public String nameOf(Throwable error) {
        if (error instanceof ExecutionException) return nameOf(error.getCause());
        if (error instanceof ClientConnectionSecurityException) return "Unauthorized";
        // It looks at the size itself.
        if (error instanceof ClientMessageFormatViolationException) return "MessageSizeExceeded";
        if (error instanceof ClientResourceRemotelyClosedException own && own.getErrorCondition() != null) {
            return Table.conditionOf(own.getErrorCondition().condition());
        }
        return Table.conditionOf(String.valueOf(error.getMessage()));
    }

    private static Message<byte[]> messageOf(JsonNode form) throws ClientException {
        var one = Message.create(Table.bodyOf(form).getBytes());
        if (form.has("id")) one.messageId(Table.text(form, "id"));
        if (form.has("subject")) one.subject(Table.text(form, "subject"));
        if (form.has("correlation")) one.correlationId(Table.text(form, "correlation"));
        if (form.has("to")) one.to(Table.text(form, "to"));
        if (form.has("replyTo")) one.replyTo(Table.text(form, "replyTo"));
        if (form.has("replyToSession")) one.replyToGroupId(Table.text(form, "replyToSession"));
        if (form.has("contentType")) one.contentType(Table.text(form, "contentType"));
        if (form.has("session")) one.groupId(Table.text(form, "session"));
        if (form.has("ttl")) one.timeToLive(form.get("ttl").asLong() * 1000);
        if (form.has("partitionKey")) one.annotation("x-opt-partition-key", Table.text(form, "partitionKey"));
        if (form.has("scheduled")) {
            one.annotation("x-opt-scheduled-enqueue-time", new Date(System.currentTimeMillis() + form.get("scheduled").asLong() * 1000));
        }
        for (var each : Table.properties(form).entrySet()) one.property(each.getKey(), each.getValue());
        return one;
    }

    private static Map<String, Object> formOf(Delivery delivery) throws ClientException {
        Message<byte[]> one = delivery.message();
        var form = new LinkedHashMap<String, Object>();
        String body = new String(one.body() == null ? new byte[0] : one.body());
        form.put("body", body);
        form.put("length", body.length());
        form.put("id", one.messageId());
        form.put("subject", one.subject());
        form.put("correlation", one.correlationId());
        form.put("to", one.to());
        form.put("replyTo", one.replyTo());
        form.put("replyToSession", one.replyToGroupId());
        form.put("contentType", one.contentType());
        form.put("session", one.groupId());
        form.put("ttl", one.timeToLive() / 1000);
        form.put("count", one.deliveryCount());
        form.put("partitionKey", one.annotation("x-opt-partition-key"));
        form.put("number", one.annotation("x-opt-sequence-number"));
        form.put("source", one.annotation("x-opt-deadletter-source"));
        Object state = one.annotation("x-opt-message-state");
        form.put("state", List.of("active", "deferred", "scheduled").get(state == null ? 0 : ((Number) state).intValue()));
        form.put("reason", one.property("DeadLetterReason"));
        form.put("description", one.property("DeadLetterErrorDescription"));
        var properties = new LinkedHashMap<String, Object>();
        one.forEachProperty(properties::put);
        form.put("properties", properties);
        return form;
    }

    private Receiver receiver(JsonNode step) throws Exception {
        if (step.has("session")) return sessions.get(Table.text(step, "session"));
        String from = Table.text(step, "from"), mode = Table.text(step, "do") + step.path("mode").asText() + step.path("transaction").asText();
        if (!receivers.containsKey(from + mode)) {
            var options = options();
            if (step.has("mode")) options.deliveryMode(DeliveryMode.AT_MOST_ONCE);
            // Each look begins with the first message.
            if (mode.equals("peek")) options.sourceOptions().distributionMode(DistributionMode.COPY);
            var of = transactions.getOrDefault(step.path("transaction").asText(), connection().defaultSession());
            var made = of.openReceiver(from, options);
            made.openFuture().get();
            if (mode.equals("peek")) return made;
            receivers.put(from + mode, made);
        }
        return receivers.get(from + mode);
    }

    private static ReceiverOptions options() {
        return new ReceiverOptions().autoAccept(false).autoSettle(false).creditWindow(0);
    }

    private List<Map<String, Object>> receive(JsonNode step) throws Exception {
        var by = receiver(step);
        boolean peeks = Table.text(step, "do").equals("peek");
        int count = Math.max(step.path("see").size(), 1);
        long end = System.currentTimeMillis() + (step.path("see").size() > 0 ? Table.LONG : Table.SHORT);
        by.addCredit(peeks ? 20 : count);
        if (peeks) by.drain().get();
        var arrived = new ArrayList<Delivery>();
        while (peeks ? by.queuedDeliveries() > 0 : arrived.size() < count && System.currentTimeMillis() < end) {
            var one = by.receive(Math.max(end - System.currentTimeMillis(), 1), TimeUnit.MILLISECONDS);
            if (one != null) arrived.add(one);
        }
        if (peeks) by.closeAsync();
        held.put(step.path("as").asText(), arrived);
        var forms = new ArrayList<Map<String, Object>>();
        for (var one : arrived) forms.add(formOf(one));
        return forms;
    }

    private Object accept(JsonNode step) throws Exception {
        var options = options();
        options.sourceOptions().addFilter(FILTER, SESSIONS, Table.text(step, "session"));
        if (step.has("seconds")) options.properties(Map.of(TIMEOUT, UnsignedInteger.valueOf(step.get("seconds").asInt() * 1000)));
        var made = connection().openReceiver(Table.text(step, "from"), options);
        made.openFuture().get();
        sessions.put(Table.text(step, "as"), made);
        // It shows a value that has a type of its own as text.
        return String.valueOf(made.source().filters().get(FILTER)).replaceFirst(".*described=(.*)}", "$1");
    }

    private void send(JsonNode step) throws Exception {
        if (step.has("batch")) throw new Table.Impossible("batches");
        var of = transactions.getOrDefault(step.path("transaction").asText(), connection().defaultSession());
        var sender = of.openSender(Table.text(step, "to"));
        sender.openFuture().get();
        for (JsonNode form : step.get("messages")) check(sender.send(messageOf(form)).settlementFuture().get().remoteState());
        sender.closeAsync();
    }

    private void settle(JsonNode step, DeliveryState state) throws Exception {
        for (var one : held.get(Table.text(step, "messages"))) {
            one.disposition(state, step.has("transaction"));
            if (step.has("transaction")) continue;
            // It has no future of a settlement.
            while (!one.remoteSettled()) Thread.sleep(1);
            if (!state.isRejected()) check(one.remoteState());
        }
    }

    private static void check(DeliveryState state) throws ClientException {
        if (state != null && state.isRejected()) throw new ClientException(((Rejected) state).getCondition());
    }

    @Override
    void forget() {
        connection = null;
    }

    @Override
    Object act(String verb, JsonNode step) throws Exception {
        Map<String, Object> properties = step.has("properties") ? Table.properties(step) : null;
        switch (verb) {
            case "send" -> send(step);
            case "receive", "peek" -> {
                return receive(step);
            }
            case "accept" -> {
                return accept(step);
            }
            case "close" -> sessions.get(Table.text(step, "session")).close();
            case "complete" -> settle(step, DeliveryState.accepted());
            case "abandon" -> settle(step, properties == null ? FAILED : DeliveryState.modified(true, false, properties));
            case "defer" -> settle(step, properties == null ? DeliveryState.modified(true, true) : DeliveryState.modified(true, true, properties));
            case "dead-letter" -> {
                var info = Table.properties(step);
                if (step.has("reason")) info.put("DeadLetterReason", Table.text(step, "reason"));
                if (step.has("description")) info.put("DeadLetterErrorDescription", Table.text(step, "description"));
                settle(step, DeliveryState.rejected("com.microsoft:dead-letter", "", info));
            }
            case "begin" -> transactions.put(Table.text(step, "as"), connection().openSession().beginTransaction());
            case "commit" -> transactions.get(Table.text(step, "transaction")).commitTransaction();
            case "rollback" -> transactions.get(Table.text(step, "transaction")).rollbackTransaction();
            case "select" -> {
                var options = options();
                options.sourceOptions().addFilter("apache.org:selector-filter:string", UnsignedLong.valueOf(0x468C00000004L), Table.text(step, "selector"));
                connection().openReceiver(Table.text(step, "from"), options).openFuture().get();
            }
            case "dynamic" -> {
                var made = connection().openDynamicReceiver(options());
                made.openFuture().get();
                addresses.put(Table.text(step, "as"), made.address());
                receivers.put(made.address() + "receive", made);
            }
            default -> throw new Table.Impossible(verb);
        }
        return null;
    }
}
