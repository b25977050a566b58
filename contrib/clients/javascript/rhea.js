// Facts, asked of rhea, a client of AMQP 1.0 that knows nothing of Service Bus: `node rhea.js FACTS SETTINGS`.
"use strict";

const { readFileSync } = require("node:fs");
const rhea = require("rhea");
const { ask, bodyOf, Impossible, main, sleep } = require("./table.js");

const WAIT = 15000;
const SHORT = 1000;
const settings = JSON.parse(readFileSync(process.argv[3], "utf8"));
const PARTITION = "x-opt-partition-key";
const SESSION = "com.microsoft:session-filter";
const STATES = ["active", "deferred", "scheduled"];
// What the table calls errors.
const ERRORS = {
  "amqp:not-found": "EntityNotFound", "amqp:unauthorized-access": "Unauthorized",
  "com.microsoft:entity-disabled": "EntityDisabled", "amqp:not-implemented": "NotImplemented",
  "amqp:not-allowed": "InvalidOperation", "amqp:resource-limit-exceeded": "QuotaExceeded",
  "amqp:link:message-size-exceeded": "MessageSizeExceeded", "com.microsoft:session-lock-lost": "SessionLockLost",
  "com.microsoft:message-lock-lost": "MessageLockLost",
  "com.microsoft:session-cannot-be-locked": "SessionCannotBeLocked", "com.microsoft:timeout": "ServiceTimeout",
};
const FIELDS = {
  id: "message_id", subject: "subject", correlation: "correlation_id", to: "to", replyTo: "reply_to",
  replyToSession: "reply_to_group_id", contentType: "content_type", session: "group_id",
  properties: "application_properties",
};

// Resolves at an event, and fails at an error of the link.
const until = (emitter, event, kind) =>
  new Promise((done, fail) => {
    emitter.once(event, done);
    emitter.once(`${kind}_error`, () => fail(emitter.error));
  });

// A link that is refused opens without a source first, and its error follows.
async function opened(receiver) {
  const error = new Promise((_, fail) => receiver.once("receiver_error", () => fail(receiver.error)));
  error.catch(() => {});
  await until(receiver, "receiver_open", "receiver");
  const { source } = receiver.remote.attach;
  if (!source || !source.address) await error;
  return receiver;
}

function messageOf(form) {
  const message = { body: rhea.message.data_section(Buffer.from(bodyOf(form))) };
  for (const [name, field] of Object.entries(FIELDS)) if (name in form) message[field] = form[name];
  if ("ttl" in form) message.ttl = form.ttl * 1000;
  message.message_annotations = {};
  if ("partitionKey" in form) message.message_annotations[PARTITION] = form.partitionKey;
  if ("scheduled" in form)
    message.message_annotations["x-opt-scheduled-enqueue-time"] = rhea.types.wrap_timestamp(Date.now() + form.scheduled * 1000);
  return message;
}

function formOf({ message }) {
  const body = Buffer.from(message.body.content).toString();
  const properties = message.application_properties || {};
  const form = {
    body, length: body.length, count: message.delivery_count || 0, ttl: message.ttl / 1000,
    number: Number(message.message_annotations["x-opt-sequence-number"]),
    reason: properties.DeadLetterReason, description: properties.DeadLetterErrorDescription,
    source: message.message_annotations["x-opt-deadletter-source"],
    partitionKey: message.message_annotations[PARTITION],
    state: STATES[message.message_annotations["x-opt-message-state"] || 0],
  };
  for (const [name, field] of Object.entries(FIELDS)) form[name] = message[field];
  return form;
}

class Fact {
  constructor() {
    this.names = {};
    this.addresses = {};
    this.connections = [];
    this.connect({ by: "plain" });
  }

  connect({ by }) {
    if (by !== "plain" && by !== "tls") throw new Impossible(by);
    const [username, password] = settings.keys[by];
    const tls = by === "tls" ? { transport: "tls", ca: readFileSync(settings.authority) } : {};
    const container = rhea.create_container();
    this.connection = container.connect({
      host: settings.host, port: settings.port, username, password, reconnect: false, ...tls,
    });
    for (const kind of ["connection_error", "disconnected", "error"]) this.connection.on(kind, () => {});
    this.connections.push(this.connection);
    this.receivers = {};
  }

  async end() {
    for (const connection of this.connections) connection.close();
  }

  // Opens a link that gives no credit by itself.
  async open(source, more = {}) {
    const receiver = this.connection.open_receiver({ source, credit_window: 0, autoaccept: false, ...more });
    receiver.arrived = [];
    receiver.on("message", (context) => receiver.arrived.push(context));
    return opened(receiver);
  }

  async receiver({ from, mode, session }) {
    if (session) return this.names[session];
    const key = `${from} ${mode}`;
    if (!this.receivers[key])
      this.receivers[key] = await this.open({ address: from }, { snd_settle_mode: mode === "delete" ? 1 : 0 });
    return this.receivers[key];
  }
}

const settle = (state) => async (fact, step) => {
  if (step.transaction) throw new Impossible("transactions");
  for (const { delivery } of fact.names[step.messages]) {
    // Its own verbs settle without an answer.
    delivery.update(false, state(step).described());
    while (!delivery.remote_settled && delivery.link.is_open()) await sleep(1);
    if (!delivery.remote_settled) throw delivery.link.error;
    delivery.update(true);
    const { error } = delivery.remote_state || {};
    if (error && step.do !== "dead-letter") throw error;
  }
};

const verbs = {
  client: (fact, step) => fact.connect(step),
  wait: (fact, step) => sleep(step.seconds * 1000),
  async dynamic(fact, step) {
    const receiver = await fact.open({ dynamic: true });
    const { address } = receiver.source;
    fact.addresses[step.as] = address;
    fact.receivers[`${address} ${undefined}`] = receiver;
  },
  async select(fact, step) {
    await fact.open({ address: step.from, filter: rhea.filter.selector(step.selector) });
  },
  async accept(fact, step) {
    const filter = { [SESSION]: step.session || null };
    const more = "seconds" in step ? { properties: { "com.microsoft:timeout": rhea.types.wrap_uint(step.seconds * 1000) } } : {};
    const receiver = await fact.open({ address: step.from, filter }, more);
    fact.names[step.as] = receiver;
    return receiver.source.filter[SESSION];
  },
  async close(fact, step) {
    const receiver = fact.names[step.session];
    const closed = until(receiver, "receiver_close", "receiver");
    receiver.close();
    await closed;
  },
  async peek(fact, step) {
    if (step.session) throw new Impossible("peek of a session");
    const receiver = await fact.open({ address: step.from, distribution_mode: "copy" });
    const drained = until(receiver, "receiver_drained", "receiver");
    receiver.add_credit(20);
    receiver.drain_credit();
    await drained;
    receiver.close();
    return receiver.arrived.map(formOf);
  },
  async send(fact, step) {
    if (step.transaction || step.batch) throw new Impossible(step.batch ? "batches" : "transactions");
    const messages = step.messages.map(messageOf);
    const sender = fact.connection.open_sender(step.to);
    await until(sender, "sendable", "sender");
    for (const message of messages) {
      const answer = new Promise((done, fail) => {
        sender.once("accepted", done);
        sender.once("rejected", ({ delivery }) => fail(delivery.remote_state.error));
        sender.once("sender_error", () => fail(sender.error));
      });
      sender.send(message);
      await answer;
    }
  },
  async receive(fact, step) {
    const count = Math.max((step.see || []).length, 1);
    const receiver = await fact.receiver(step);
    receiver.add_credit(count);
    const end = Date.now() + (step.see && step.see.length ? WAIT : SHORT);
    while (receiver.arrived.length < count && Date.now() < end) await sleep(10);
    const seen = receiver.arrived.splice(0, count);
    fact.names[step.as] = seen;
    return seen.map(formOf);
  },
  complete: settle(() => rhea.message.accepted()),
  abandon: settle(({ properties }) =>
    rhea.message.modified({ delivery_failed: true, undeliverable_here: false, message_annotations: properties })),
  defer: settle(({ properties }) =>
    rhea.message.modified({ delivery_failed: true, undeliverable_here: true, message_annotations: properties })),
  "dead-letter": settle(({ reason, description, properties }) =>
    rhea.message.rejected({ error: {
      condition: "com.microsoft:dead-letter", description,
      info: { DeadLetterReason: reason, DeadLetterErrorDescription: description, ...properties },
    } })),
};

main((fact) => ask(fact, () => new Fact(), verbs, (error) => ERRORS[error && error.condition] || String(error && error.condition)));
