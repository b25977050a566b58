import com.fasterxml.jackson.databind.JsonNode;
import java.util.*;

/** One fact under way, of a client that knows AMQP alone: what it has, by the names that the table gives. */
abstract class Bare<M, R, S, C extends AutoCloseable> implements Table.Client {
    final Map<String, List<M>> held = new HashMap<>();
    final Map<String, R> receivers = new HashMap<>();
    final Map<String, S> transactions = new HashMap<>();
    final Map<String, String> addresses = new HashMap<>();
    String way = "plain";
    private final List<C> opened = new ArrayList<>();

    /** Close a connection at the end. */
    C keep(C connection) {
        opened.add(connection);
        return connection;
    }

    @Override
    public void close() throws Exception {
        for (var one : opened) one.close();
    }

    @Override
    public Map<String, String> addresses() {
        return addresses;
    }

    /** Connect in another way from now on. */
    abstract void forget();

    /** Take a step that is the client's own. */
    abstract Object act(String verb, JsonNode step) throws Exception;

    @Override
    public Object take(String verb, JsonNode step) throws Exception {
        switch (verb) {
            case "client" -> {
                way = Table.text(step, "by");
                receivers.clear();
                forget();
            }
            case "wait" -> Thread.sleep((long) (step.get("seconds").asDouble() * 1000));
            default -> {
                return act(verb, step);
            }
        }
        return null;
    }
}
