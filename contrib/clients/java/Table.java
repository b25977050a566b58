import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Executors;
import java.util.function.Supplier;

/** How a program of Java takes the steps of the table, whatever client it has. */
final class Table {
    static final ObjectMapper JSON = new ObjectMapper();
    static final int WORKERS = 24;
    /** How long a step waits for messages, and for none, in milliseconds. */
    static final long LONG = 20_000, SHORT = 1_000;
    /** What the table calls errors of AMQP. */
    private static final Map<String, String> CONDITIONS = Map.ofEntries(
        Map.entry("amqp:not-found", "EntityNotFound"), Map.entry("amqp:unauthorized-access", "Unauthorized"),
        Map.entry("amqp:not-implemented", "NotImplemented"), Map.entry("amqp:not-allowed", "InvalidOperation"),
        Map.entry("amqp:resource-limit-exceeded", "QuotaExceeded"),
        Map.entry("amqp:link:message-size-exceeded", "MessageSizeExceeded"),
        Map.entry("com.microsoft:entity-disabled", "EntityDisabled"),
        Map.entry("com.microsoft:message-lock-lost", "MessageLockLost"),
        Map.entry("com.microsoft:session-lock-lost", "SessionLockLost"),
        Map.entry("com.microsoft:session-cannot-be-locked", "SessionCannotBeLocked"),
        Map.entry("com.microsoft:timeout", "ServiceTimeout"));
    static JsonNode settings;

    private Table() {}

    /** One fact under way. */
    interface Client extends AutoCloseable {
        /** Take a step, and return what it sees. */
        Object take(String verb, JsonNode step) throws Exception;

        /** Queues that the server has made for it, by name. */
        default Map<String, String> addresses() {
            return Map.of();
        }

        /** What the table calls an error. */
        String nameOf(Throwable error);
    }

    /** A step for which a client has no call. */
    static final class Impossible extends RuntimeException {
        Impossible(String what) {
            super(what);
        }
    }

    static String text(JsonNode step, String name) {
        return step.hasNonNull(name) ? step.get(name).asText() : null;
    }

    /** Return what the table calls the error of AMQP that a text names. */
    static String conditionOf(String text) {
        return CONDITIONS.entrySet().stream().filter(one -> text.contains(one.getKey())).map(Map.Entry::getValue).findFirst().orElse("?");
    }

    /** Return name and key for a way to connect that AMQP alone has. */
    static JsonNode keyOf(String way) {
        if (!settings.get("keys").has(way)) throw new Impossible(way);
        return settings.get("keys").get(way);
    }

    /** Return a step with the addresses of queues that the server has made. */
    private static JsonNode resolve(JsonNode step, Map<String, String> addresses) throws IOException {
        String text = step.toString();
        for (var one : addresses.entrySet()) text = text.replace("\"@" + one.getKey() + "\"", "\"" + one.getValue() + "\"");
        return JSON.readTree(text);
    }

    /** The body that a message of the table has. */
    static String bodyOf(JsonNode form) {
        return form.has("repeat") ? form.get("repeat").asText().repeat(form.get("times").asInt()) : form.path("body").asText("");
    }

    @SuppressWarnings("unchecked")
    static Map<String, Object> properties(JsonNode form) {
        return form.has("properties") ? JSON.convertValue(form.get("properties"), Map.class) : new LinkedHashMap<>();
    }

    /** Of maps and messages only what the table names is compared. */
    static boolean holds(JsonNode expected, JsonNode seen) {
        if (expected.isNumber()) {
            return seen.isNumber() && expected.decimalValue().compareTo(seen.decimalValue()) == 0;
        }
        if (expected.isArray()) {
            if (!seen.isArray() || seen.size() != expected.size()) return false;
            for (int n = 0; n < seen.size(); n++) if (!holds(expected.get(n), seen.get(n))) return false;
            return true;
        }
        if (expected.isObject()) {
            for (var one : expected.properties()) if (!holds(one.getValue(), seen.path(one.getKey()))) return false;
            return true;
        }
        return expected.equals(seen);
    }

    private static void take(Client client, JsonNode given) throws Exception {
        JsonNode step = resolve(given, client.addresses());
        String fails = text(step, "fails");
        JsonNode seen;
        try {
            seen = JSON.valueToTree(client.take(step.get("do").asText(), step));
        } catch (Impossible error) {
            throw error;
        } catch (Throwable error) {
            if (fails == null) throw error;
            String name = client.nameOf(error);
            if (!name.equals(fails)) throw new IllegalStateException("expected " + fails + ", got " + name + ": " + error, error);
            return;
        }
        if (fails != null) throw new IllegalStateException("expected " + fails + " of " + step.get("do") + ", got " + seen);
        if (step.has("see") && !holds(step.get("see"), seen)) {
            String told = String.valueOf(seen);
            throw new IllegalStateException(
                step.get("do") + ": expected " + step.get("see") + ", got " + told.substring(0, Math.min(500, told.length())));
        }
    }

    private static Map<String, Object> ask(JsonNode fact, Supplier<Client> open) {
        var told = new LinkedHashMap<String, Object>();
        told.put("title", fact.get("title").asText());
        try (Client client = open.get()) {
            for (JsonNode step : fact.get("steps")) take(client, step);
            told.put("ok", true);
        } catch (Impossible error) {
            told.put("impossible", error.getMessage());
        } catch (Throwable error) {
            told.put("ok", false);
            told.put("why", String.valueOf(error));
        }
        return told;
    }

    /** Have all of Java trust the server's authority. */
    private static void trust(String authority) throws Exception {
        var store = KeyStore.getInstance("PKCS12");
        store.load(null, null);
        try (InputStream file = Files.newInputStream(Path.of(authority))) {
            store.setCertificateEntry("authority", CertificateFactory.getInstance("X.509").generateCertificate(file));
        }
        var file = File.createTempFile("trusted", ".p12");
        file.deleteOnExit();
        try (var out = Files.newOutputStream(file.toPath())) {
            store.store(out, "changeit".toCharArray());
        }
        System.setProperty("javax.net.ssl.trustStore", file.getPath());
        System.setProperty("javax.net.ssl.trustStorePassword", "changeit");
        System.setProperty("javax.net.ssl.trustStoreType", "PKCS12");
    }

    /** Ask all facts whose title has a part, several at a time. */
    static void run(String[] words, Supplier<Client> open) throws Exception {
        JsonNode facts = JSON.readTree(new File(words[0]));
        settings = JSON.readTree(new File(words[1]));
        String part = words.length > 2 ? words[2] : "";
        trust(settings.get("authority").asText());
        var pool = Executors.newFixedThreadPool(WORKERS);
        var under = new ArrayList<java.util.concurrent.Future<Map<String, Object>>>();
        for (JsonNode fact : facts) {
            if (fact.get("title").asText().contains(part)) under.add(pool.submit(() -> ask(fact, open)));
        }
        for (var one : under) print(one.get());
        System.exit(0);
    }

    private static void print(Map<String, Object> told) throws IOException {
        System.out.println(JSON.writeValueAsString(told));
        System.out.flush();
    }

    static List<Object> list() {
        return new ArrayList<>();
    }
}
