// Facts, asked of rhea, a client of AMQP 1.0 that knows nothing of Service Bus: `node rhea.js FACTS SETTINGS`.
"use strict";

const { readFileSync } = require("node:fs");
const rhea = require("rhea");
const { ask, bodyOf, Impossible, main, sleep } = require("./table.js");

const WAIT = 15000;
const SHORT = 1000;
const settings = JSON.parse(readFileSync(process.argv[3], "utf8"));
// What the table calls errors.
const ERRORS = {
  "amqp:not-found": "EntityNotFound", "amqp:unauthorized-access": "Unauthorized",
  "com.microsoft:entity-disabled": "EntityDisabled", "amqp:not-implemented": "NotImplemented",
  "amqp:not-allowed": "InvalidOperation", "amqp:resource-limit-exceeded": "QuotaExceeded",
  "amqp:link:message-size-exceeded": "MessageSizeExceeded",
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
  for (const name of ["partitionKey", "scheduled"]) if (name in form) throw new Impossible(name);
  const message = { body: rhea.message.data_section(Buffer.from(bodyOf(form))) };
  for (const [name, field] of Object.entries(FIELDS)) if (name in form) message[field] = form[name];
  if ("ttl" in form) message.ttl = form.ttl * 1000;
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
  };
  for (const [name, field] of Object.entries(FIELDS)) form[name] = message[field];
  return form;
}

class Fact {
  constructor() {
    this.names = {};
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

  async receiver(from, mode) {
    const key = `${from} ${mode}`;
    if (!this.receivers[key]) {
      const options = { source: { address: from }, credit_window: 0, autoaccept: false, snd_settle_mode: mode === "delete" ? 1 : 0 };
      const receiver = this.connection.open_receiver(options);
      receiver.arrived = [];
      receiver.on("message", (context) => receiver.arrived.push(context));
      this.receivers[key] = await opened(receiver);
    }
    return this.receivers[key];
  }
}

const settle = (act) => async (fact, step) => {
  if (step.transaction) throw new Impossible("transactions");
  for (const { delivery } of fact.names[step.messages]) act(delivery, step);
  // Nothing tells when the server has done it: what is asked next on the connection comes after.
  await sleep(0);
};

const verbs = {
  client: (fact, step) => fact.connect(step),
  wait: (fact, step) => sleep(step.seconds * 1000),
  async dynamic(fact) {
    await opened(fact.connection.open_receiver({ source: { dynamic: true } }));
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
    if (step.session) throw new Impossible("sessions");
    const count = Math.max((step.see || []).length, 1);
    const receiver = await fact.receiver(step.from, step.mode);
    receiver.add_credit(count);
    const end = Date.now() + (step.see && step.see.length ? WAIT : SHORT);
    while (receiver.arrived.length < count && Date.now() < end) await sleep(10);
    const seen = receiver.arrived.splice(0, count);
    fact.names[step.as] = seen;
    return seen.map(formOf);
  },
  complete: settle((delivery) => delivery.accept()),
  abandon: settle((delivery, { properties }) =>
    delivery.modified({ delivery_failed: true, undeliverable_here: false, message_annotations: properties })),
  "dead-letter": settle((delivery, { reason, description, properties }) =>
    delivery.reject(reason && {
      condition: "com.microsoft:dead-letter", description,
      info: { DeadLetterReason: reason, DeadLetterErrorDescription: description, ...properties },
    })),
};

main((fact) => ask(fact, () => new Fact(), verbs, (error) => ERRORS[error && error.condition] || String(error && error.condition)));
