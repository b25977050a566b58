import com.azure.core.amqp.AmqpRetryOptions;
import com.azure.core.amqp.AmqpTransportType;
import com.azure.core.amqp.exception.AmqpErrorCondition;
import com.azure.core.amqp.exception.AmqpException;
import com.azure.core.exception.HttpResponseException;
import com.azure.core.exception.ResourceExistsException;
import com.azure.core.exception.ResourceNotFoundException;
import com.azure.core.http.policy.FixedDelayOptions;
import com.azure.core.http.policy.RetryOptions;
import com.azure.messaging.servicebus.*;
import com.azure.messaging.servicebus.administration.*;
import com.azure.messaging.servicebus.administration.models.*;
import com.azure.messaging.servicebus.models.*;
import com.fasterxml.jackson.databind.JsonNode;
import java.time.Duration;
import java.time.OffsetDateTime;
import java.util.*;

/** Facts, asked of Azure's Service Bus SDK for Java: `java Azure FACTS SETTINGS [part of a title]`. */
final class Azure implements Table.Client {
    private static final Duration LONG = Duration.ofSeconds(20), SHORT = Duration.ofSeconds(1);
    /** What the table calls errors. */
    private static final Map<ServiceBusFailureReason, String> ERRORS = Map.ofEntries(
        Map.entry(ServiceBusFailureReason.MESSAGE_LOCK_LOST, "MessageLockLost"),
        Map.entry(ServiceBusFailureReason.SESSION_LOCK_LOST, "SessionLockLost"),
        Map.entry(ServiceBusFailureReason.MESSAGE_NOT_FOUND, "MessageNotFound"),
        Map.entry(ServiceBusFailureReason.MESSAGE_SIZE_EXCEEDED, "MessageSizeExceeded"),
        Map.entry(ServiceBusFailureReason.MESSAGING_ENTITY_NOT_FOUND, "EntityNotFound"),
        Map.entry(ServiceBusFailureReason.MESSAGING_ENTITY_ALREADY_EXISTS, "EntityAlreadyExists"),
        Map.entry(ServiceBusFailureReason.MESSAGING_ENTITY_DISABLED, "EntityDisabled"),
        Map.entry(ServiceBusFailureReason.QUOTA_EXCEEDED, "QuotaExceeded"),
        Map.entry(ServiceBusFailureReason.SERVICE_TIMEOUT, "ServiceTimeout"),
        Map.entry(ServiceBusFailureReason.SESSION_CANNOT_BE_LOCKED, "SessionCannotBeLocked"),
        Map.entry(ServiceBusFailureReason.UNAUTHORIZED, "Unauthorized"));
    /** And those for which the SDK has no reason of its own. */
    private static final Map<AmqpErrorCondition, String> CONDITIONS = Map.of(
        AmqpErrorCondition.NOT_FOUND, "EntityNotFound",
        AmqpErrorCondition.UNAUTHORIZED_ACCESS, "Unauthorized",
        AmqpErrorCondition.SESSION_CANNOT_BE_LOCKED, "SessionCannotBeLocked",
        AmqpErrorCondition.SESSION_LOCK_LOST, "SessionLockLost",
        AmqpErrorCondition.TIMEOUT_ERROR, "ServiceTimeout",
        AmqpErrorCondition.NOT_ALLOWED, "InvalidOperation",
        AmqpErrorCondition.ARGUMENT_ERROR, "InvalidRule");

    private record Held(ServiceBusReceiverClient by, ServiceBusReceivedMessage message) {}

    private final List<AutoCloseable> opened = new ArrayList<>();
    private final Map<String, List<Held>> held = new HashMap<>();
    private final Map<String, ServiceBusReceiverClient> sessions = new HashMap<>(), receivers = new HashMap<>();
    private final Map<String, ServiceBusSenderClient> senders = new HashMap<>();
    private final Map<String, ServiceBusTransactionContext> transactions = new HashMap<>();
    private final Map<String, List<Long>> numbers = new HashMap<>();
    private String way = "plain";
    /** Who has begun the last transaction; it ends it. */
    private ServiceBusSenderClient beginner;
    private ServiceBusClientBuilder shared;

    public static void main(String[] words) throws Exception {
        Table.run(words, Azure::new);
    }

    @Override
    public void close() throws Exception {
        Collections.reverse(opened);
        for (AutoCloseable one : opened) one.close();
    }

    private <T extends AutoCloseable> T open(T one) {
        opened.add(one);
        return one;
    }

    /** One builder is one connection. */
    private ServiceBusClientBuilder builder() {
        if (shared == null) shared = builder(LONG);
        return shared;
    }

    private ServiceBusClientBuilder builder(Duration timeout) {
        var retry = new AmqpRetryOptions().setMaxRetries(0).setTryTimeout(timeout);
        String text = Table.settings.get("strings").get(way).asText();
        // Its connection has TLS wherever it goes: the port is the same.
        String plain = text.replaceFirst("sb://[^;]*", "sb://localhost").replace(";UseDevelopmentEmulator=true", "");
        var made = new ServiceBusClientBuilder().connectionString(plain).retryOptions(retry)
            .customEndpointAddress("https://localhost:" + Table.settings.get("port").asText());
        return way.equals("websocket") ? made.transportType(AmqpTransportType.AMQP_WEB_SOCKETS) : made;
    }

    private ServiceBusAdministrationClient administration() {
        String text = Table.settings.get("strings").get("websocket").asText();
        return new ServiceBusAdministrationClientBuilder().connectionString(text)
            // It drops the port of an address.
            .addPolicy((context, next) -> {
                context.setHttpRequest(context.getHttpRequest().setUrl(
                    context.getHttpRequest().getUrl().toString().replaceFirst("//[^/]*", "//localhost:" + Table.settings.get("port").asText())));
                return next.process();
            })
            .retryOptions(new RetryOptions(new FixedDelayOptions(0, Duration.ofMillis(1)))).buildClient();
    }

    @Override
    public String nameOf(Throwable error) {
        for (Throwable one = error; one != null; one = one.getCause()) {
            String text = String.valueOf(one.getMessage());
            if (one instanceof ServiceBusException own && own.getReason() != ServiceBusFailureReason.GENERAL_ERROR) return ERRORS.get(own.getReason());
            if (one instanceof AmqpException own && own.getErrorCondition() != null) return CONDITIONS.getOrDefault(own.getErrorCondition(), "?");
            if (one instanceof ResourceNotFoundException) return "EntityNotFound";
            if (one instanceof ResourceExistsException) return "EntityAlreadyExists";
            if (one instanceof HttpResponseException answer && answer.getResponse().getStatusCode() == 400) return "InvalidRule";
            if (one instanceof UnsupportedOperationException) return "InvalidOperation";
            if (text.contains("com.microsoft:timeout")) return "ServiceTimeout";
        }
        return error.getClass().getSimpleName();
    }

    private ServiceBusSenderClient sender(String to) {
        return senders.computeIfAbsent(to, name -> open(builder().sender().queueName(name).buildClient()));
    }

    private ServiceBusReceiverClient receiver(JsonNode step) {
        if (step.has("session")) return sessions.get(Table.text(step, "session"));
        return receivers.computeIfAbsent(Table.text(step, "from") + step.path("mode").asText(), name -> {
            String[] parts = Table.text(step, "from").split("/\\$")[0].split("/Subscriptions/");
            var made = builder().receiver().maxAutoLockRenewDuration(Duration.ZERO).disableAutoComplete();
            if (parts.length > 1) made.topicName(parts[0]).subscriptionName(parts[1]);
            else made.queueName(parts[0]);
            if (name.contains("/$")) made.subQueue(SubQueue.DEAD_LETTER_QUEUE);
            if (step.has("mode")) made.receiveMode(ServiceBusReceiveMode.RECEIVE_AND_DELETE);
            return open(made.buildClient());
        });
    }

    private static List<ServiceBusMessage> messagesOf(JsonNode step) {
        var made = new ArrayList<ServiceBusMessage>();
        for (JsonNode form : step.get("messages")) {
            var one = new ServiceBusMessage(Table.bodyOf(form)).setSubject(Table.text(form, "subject"))
                .setCorrelationId(Table.text(form, "correlation")).setTo(Table.text(form, "to")).setReplyTo(Table.text(form, "replyTo"))
                .setReplyToSessionId(Table.text(form, "replyToSession")).setContentType(Table.text(form, "contentType"));
            if (form.has("id")) one.setMessageId(Table.text(form, "id"));
            if (form.has("session")) one.setSessionId(Table.text(form, "session"));
            if (form.has("partitionKey")) one.setPartitionKey(Table.text(form, "partitionKey"));
            if (form.has("ttl")) one.setTimeToLive(Duration.ofSeconds(form.get("ttl").asLong()));
            if (form.has("scheduled")) one.setScheduledEnqueueTime(OffsetDateTime.now().plusSeconds(form.get("scheduled").asLong()));
            one.getApplicationProperties().putAll(Table.properties(form));
            made.add(one);
        }
        return made;
    }

    private static List<Object> formsOf(Iterable<ServiceBusReceivedMessage> messages) {
        var forms = Table.list();
        for (var m : messages) {
            var form = new HashMap<String, Object>();
            String body = m.getBody().toString();
            form.put("body", body);
            form.put("length", body.length());
            form.put("id", m.getMessageId());
            form.put("subject", m.getSubject());
            form.put("correlation", m.getCorrelationId());
            form.put("to", m.getTo());
            form.put("replyTo", m.getReplyTo());
            form.put("replyToSession", m.getReplyToSessionId());
            form.put("contentType", m.getContentType());
            form.put("partitionKey", m.getPartitionKey());
            form.put("session", m.getSessionId());
            form.put("ttl", m.getTimeToLive() == null ? null : m.getTimeToLive().toSeconds());
            form.put("properties", m.getApplicationProperties());
            form.put("count", m.getDeliveryCount());
            form.put("number", m.getSequenceNumber());
            form.put("state", m.getState().name().toLowerCase());
            form.put("reason", m.getDeadLetterReason());
            form.put("description", m.getDeadLetterErrorDescription());
            form.put("source", m.getDeadLetterSource());
            forms.add(form);
        }
        return forms;
    }

    private Object keep(JsonNode step, ServiceBusReceiverClient by, List<ServiceBusReceivedMessage> found) {
        held.put(Table.text(step, "as"), found.stream().map(one -> new Held(by, one)).toList());
        return formsOf(found);
    }

    private Object receive(JsonNode step) {
        int count = Math.max(step.path("see").size(), 1);
        var by = receiver(step);
        long end = System.nanoTime() + (step.path("see").size() > 0 ? LONG : SHORT).toNanos();
        var found = new ArrayList<ServiceBusReceivedMessage>();
        for (long left; found.size() < count && (left = end - System.nanoTime()) > 0; ) {
            by.receiveMessages(count - found.size(), Duration.ofNanos(left)).forEach(found::add);
        }
        return keep(step, by, found);
    }

    private Object accept(JsonNode step) {
        String[] parts = Table.text(step, "from").split("/Subscriptions/");
        var from = step.has("seconds") ? builder(Duration.ofSeconds(step.get("seconds").asLong())) : builder();
        var made = from.sessionReceiver().maxAutoLockRenewDuration(Duration.ZERO).disableAutoComplete();
        if (parts.length > 1) made.topicName(parts[0]).subscriptionName(parts[1]);
        else made.queueName(parts[0]);
        var client = open(made.buildClient());
        var session = open(step.has("session") ? client.acceptSession(Table.text(step, "session")) : client.acceptNextSession());
        sessions.put(Table.text(step, "as"), session);
        return session.getSessionId();
    }

    private void settle(String verb, JsonNode step) {
        var transaction = transactions.get(step.path("transaction").asText());
        var properties = step.has("properties") ? Table.properties(step) : null;
        for (Held one : held.get(Table.text(step, "messages"))) {
            var by = one.by();
            switch (verb) {
                case "complete" -> by.complete(one.message(), (CompleteOptions) new CompleteOptions().setTransactionContext(transaction));
                case "abandon" -> by.abandon(one.message(), new AbandonOptions().setPropertiesToModify(properties).setTransactionContext(transaction));
                case "defer" -> by.defer(one.message(), new DeferOptions().setPropertiesToModify(properties).setTransactionContext(transaction));
                case "dead-letter" -> by.deadLetter(one.message(), new DeadLetterOptions().setPropertiesToModify(properties)
                    .setDeadLetterReason(Table.text(step, "reason")).setDeadLetterErrorDescription(Table.text(step, "description"))
                    .setTransactionContext(transaction));
                default -> by.renewMessageLock(one.message());
            }
        }
    }

    private static CreateRuleOptions ruleOf(JsonNode rule) {
        RuleFilter filter;
        if (rule.has("sql")) {
            filter = new SqlRuleFilter(Table.text(rule, "sql"));
        } else {
            var correlation = new CorrelationRuleFilter().setLabel(Table.text(rule, "subject"));
            correlation.getProperties().putAll(Table.properties(rule));
            filter = correlation;
        }
        var made = new CreateRuleOptions(filter);
        return rule.has("action") ? made.setAction(new SqlRuleAction(Table.text(rule, "action"))) : made;
    }

    private static List<String> sorted(Iterable<RuleProperties> rules) {
        var names = new ArrayList<String>();
        rules.forEach(one -> names.add(one.getName()));
        Collections.sort(names);
        return names;
    }

    private ServiceBusRuleManagerClient rules(JsonNode step) {
        return open(builder().ruleManager().topicName(Table.text(step, "topic")).subscriptionName(Table.text(step, "subscription")).buildClient());
    }

    @Override
    public Object take(String verb, JsonNode step) throws Exception {
        String name = Table.text(step, "name"), topic = Table.text(step, "topic"), subscription = Table.text(step, "subscription");
        var session = sessions.get(step.path("session").asText());
        var transaction = transactions.get(step.path("transaction").asText());
        switch (verb) {
            case "client" -> {
                way = Table.text(step, "by");
                shared = null;
                senders.clear();
                receivers.clear();
            }
            case "wait" -> Thread.sleep((long) (step.get("seconds").asDouble() * 1000));
            case "send" -> {
                var sender = sender(Table.text(step, "to"));
                var messages = messagesOf(step);
                if (step.has("batch")) {
                    var batch = sender.createMessageBatch();
                    for (var one : messages) if (!batch.tryAddMessage(one)) throw new IllegalStateException("no room in the batch");
                    sender.sendMessages(batch);
                } else if (transaction != null) {
                    sender.sendMessages(messages, transaction);
                } else if (messages.size() == 1) {
                    sender.sendMessage(messages.get(0));
                } else {
                    sender.sendMessages(messages);
                }
            }
            case "schedule" -> {
                var told = new ArrayList<Long>();
                var at = OffsetDateTime.now().plusSeconds(step.get("seconds").asLong());
                sender(Table.text(step, "to")).scheduleMessages(messagesOf(step), at).forEach(told::add);
                numbers.put(Table.text(step, "as"), told);
            }
            case "cancel" -> sender(Table.text(step, "to")).cancelScheduledMessages(numbers.get(Table.text(step, "numbers")));
            case "receive" -> {
                return receive(step);
            }
            case "peek" -> {
                return formsOf(receiver(step).peekMessages(20, 1));
            }
            case "receive-deferred" -> {
                var asked = held.get(Table.text(step, "messages")).stream().map(one -> one.message().getSequenceNumber()).toList();
                var by = receiver(step);
                return keep(step, by, by.receiveDeferredMessageBatch(asked).stream().toList());
            }
            case "complete", "abandon", "defer", "dead-letter", "renew" -> settle(verb, step);
            case "accept" -> {
                return accept(step);
            }
            case "get-state" -> {
                byte[] state = session.getSessionState();
                return state == null ? null : new String(state);
            }
            case "set-state" -> session.setSessionState(Table.text(step, "state").getBytes());
            case "renew-session" -> session.renewSessionLock();
            case "close" -> session.close();
            case "begin" -> {
                beginner = sender(Table.text(step, "of"));
                transactions.put(Table.text(step, "as"), beginner.createTransaction());
            }
            case "commit" -> beginner.commitTransaction(transaction);
            case "rollback" -> beginner.rollbackTransaction(transaction);
            case "add-rule" -> rules(step).createRule(Table.text(step.get("rule"), "name"), ruleOf(step.get("rule")));
            case "remove-rule" -> rules(step).deleteRule(name);
            case "rules" -> {
                return sorted(rules(step).listRules());
            }
            default -> {
                return administer(verb, step, name, topic, subscription);
            }
        }
        return null;
    }

    private Object administer(String verb, JsonNode step, String name, String topic, String subscription) {
        var client = administration();
        JsonNode options = step.path("options");
        switch (verb) {
            case "create-rule" -> client.createRule(topic, Table.text(step.get("rule"), "name"), subscription, ruleOf(step.get("rule")));
            case "delete-rule" -> client.deleteRule(topic, subscription, name);
            case "admin-rules" -> {
                return sorted(client.listRules(topic, subscription));
            }
            case "create-queue" -> {
                var made = new CreateQueueOptions();
                if (options.has("lock")) made.setLockDuration(Duration.ofSeconds(options.get("lock").asLong()));
                if (options.has("deliveries")) made.setMaxDeliveryCount(options.get("deliveries").asInt());
                if (options.has("session")) made.setSessionRequired(options.get("session").asBoolean());
                client.createQueue(name, made);
            }
            case "get-queue" -> {
                var queue = client.getQueue(name);
                return Map.of("lock", queue.getLockDuration().toSeconds(), "deliveries", queue.getMaxDeliveryCount(), "session", queue.isSessionRequired());
            }
            case "update-queue" -> {
                var queue = client.getQueue(name);
                if (options.has("lock")) queue.setLockDuration(Duration.ofSeconds(options.get("lock").asLong()));
                if (options.has("deliveries")) queue.setMaxDeliveryCount(options.get("deliveries").asInt());
                client.updateQueue(queue);
            }
            case "delete-queue" -> client.deleteQueue(name);
            case "queue-exists" -> {
                return client.getQueueExists(name);
            }
            case "create-topic" -> client.createTopic(name);
            case "delete-topic" -> client.deleteTopic(name);
            case "create-subscription" -> client.createSubscription(topic, name);
            case "counts" -> {
                var told = client.getQueueRuntimeProperties(name);
                return Map.of("active", told.getActiveMessageCount(), "dead", told.getDeadLetterMessageCount(), "scheduled", told.getScheduledMessageCount());
            }
            default -> throw new Table.Impossible(verb);
        }
        return null;
    }
}
