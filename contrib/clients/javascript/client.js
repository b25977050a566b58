// Facts, asked of Azure's Service Bus SDK for JavaScript: `node client.js FACTS SETTINGS [part of a title]`.
"use strict";

const { readFileSync } = require("node:fs");
const { ServiceBusAdministrationClient, ServiceBusClient } = require("@azure/service-bus");
const WebSocket = require("ws");
const { ask, bodyOf, Impossible, main, sleep } = require("./table.js");

const WAIT = 15000;
const SHORT = 1000;
const settings = JSON.parse(readFileSync(process.argv[3], "utf8"));
const retryOptions = { maxRetries: 0, timeoutInMs: 20000 };
// This SDK renews locks by itself for five minutes unless told otherwise.
const unrenewed = { maxAutoLockRenewalDurationInMs: 0 };
// What the table calls errors.
const ERRORS = {
  MessagingEntityNotFound: "EntityNotFound",
  MessageEntityNotFoundError: "EntityNotFound",
  MessageEntityAlreadyExistsError: "EntityAlreadyExists",
  MessagingEntityDisabled: "EntityDisabled",
  MessageSizeExceeded: "MessageSizeExceeded",
  UnauthorizedAccess: "Unauthorized",
  GeneralError: "InvalidOperation",
  InvalidOperationError: "InvalidOperation",
};
const FIELDS = {
  id: "messageId", subject: "subject", correlation: "correlationId", to: "to", replyTo: "replyTo",
  replyToSession: "replyToSessionId", contentType: "contentType", partitionKey: "partitionKey",
  session: "sessionId", properties: "applicationProperties",
};

function messageOf(form) {
  const message = { body: Buffer.from(bodyOf(form)) };
  for (const [name, field] of Object.entries(FIELDS)) if (name in form) message[field] = form[name];
  if ("ttl" in form) message.timeToLive = form.ttl * 1000;
  if ("scheduled" in form) message.scheduledEnqueueTimeUtc = new Date(Date.now() + form.scheduled * 1000);
  return message;
}

function formOf(message) {
  const form = {
    body: message.body.toString(), length: message.body.length, count: message.deliveryCount,
    number: message.sequenceNumber && message.sequenceNumber.toNumber(), state: message.state,
    reason: message.deadLetterReason, description: message.deadLetterErrorDescription,
    source: message.deadLetterSource, ttl: message.timeToLive / 1000,
  };
  for (const [name, field] of Object.entries(FIELDS)) form[name] = message[field];
  return form;
}

function optionsOf(options) {
  const made = {};
  if ("lock" in options) made.lockDuration = `PT${options.lock}S`;
  if ("deliveries" in options) made.maxDeliveryCount = options.deliveries;
  if ("session" in options) made.requiresSession = options.session;
  return made;
}

function nameOf(error) {
  const code = error.code || error.name;
  const ofRule = (error.name === "RestError" && error.statusCode === 400) || /^ArgumentError/.test(error.message);
  return ofRule ? "InvalidRule" : ERRORS[code] || code;
}

class Fact {
  constructor() {
    this.names = {};
    this.clients = [];
    this.connect({ by: "plain" });
  }

  connect({ by }) {
    const options = { retryOptions };
    if (by === "tls" || by === "websocket") {
      options.customEndpointAddress = `sb://${settings.host}:${settings.port}`;
      if (by === "websocket") options.webSocketOptions = { webSocket: WebSocket };
    }
    this.client = new ServiceBusClient(settings.strings[by], options);
    this.clients.push(this.client);
    this.receivers = {};
    this.senders = {};
  }

  get administration() {
    return new ServiceBusAdministrationClient(settings.strings.plain, { retryOptions: { maxRetries: 0 } });
  }

  async end() {
    await Promise.all(this.clients.map((client) => client.close()));
  }

  sender(to) {
    return (this.senders[to] ??= this.client.createSender(to));
  }

  receiver({ from, mode, session }) {
    if (session) return this.names[session];
    const [base, sub] = from.split("/$");
    const [topic, subscription] = base.split("/Subscriptions/");
    const options = { ...unrenewed };
    if (mode === "delete") options.receiveMode = "receiveAndDelete";
    if (sub) options.subQueueType = "deadLetter";
    const words = subscription ? [topic, subscription, options] : [topic, options];
    return (this.receivers[`${from} ${mode}`] ??= this.client.createReceiver(...words));
  }

  async settle(step, verb, options) {
    if (step.transaction) throw new Impossible("transactions");
    for (const [receiver, message] of this.names[step.messages]) await receiver[verb](message, options);
  }

  rule({ name, sql, subject, properties, action }) {
    const filter = sql ? { sqlExpression: sql } : { subject, applicationProperties: properties };
    return [name, filter, ...(action ? [{ sqlExpression: action }] : [])];
  }

  keep(step, receiver, messages) {
    this.names[step.as] = messages.map((message) => [receiver, message]);
    return messages.map(formOf);
  }
}

const verbs = {
  client: (fact, step) => fact.connect(step),
  wait: (fact, step) => sleep(step.seconds * 1000),

  async send(fact, step) {
    if (step.transaction) throw new Impossible("transactions");
    const sender = fact.sender(step.to);
    const messages = step.messages.map(messageOf);
    if (!step.batch) return sender.sendMessages(messages.length > 1 ? messages : messages[0]);
    const batch = await sender.createMessageBatch();
    for (const message of messages) if (!batch.tryAddMessage(message)) throw new Error("no room in the batch");
    return sender.sendMessages(batch);
  },
  async schedule(fact, step) {
    const at = new Date(Date.now() + step.seconds * 1000);
    fact.names[step.as] = await fact.sender(step.to).scheduleMessages(step.messages.map(messageOf), at);
  },
  cancel: (fact, step) => fact.sender(step.to).cancelScheduledMessages(fact.names[step.numbers]),

  async receive(fact, step) {
    const count = Math.max((step.see || []).length, 1);
    const receiver = fact.receiver(step);
    const end = Date.now() + (step.see && step.see.length ? WAIT : SHORT);
    const seen = [];
    while (seen.length < count && Date.now() < end)
      seen.push(...(await receiver.receiveMessages(count - seen.length, { maxWaitTimeInMs: end - Date.now() })));
    return fact.keep(step, receiver, seen);
  },
  async peek(fact, step) {
    const Long = require("long");
    const seen = await fact.receiver(step).peekMessages(20, { fromSequenceNumber: Long.fromNumber(1) });
    return seen.map(formOf);
  },
  async "receive-deferred"(fact, step) {
    const receiver = fact.receiver(step);
    const numbers = fact.names[step.messages].map(([, message]) => message.sequenceNumber);
    return fact.keep(step, receiver, await receiver.receiveDeferredMessages(numbers));
  },

  complete: (fact, step) => fact.settle(step, "completeMessage"),
  abandon: (fact, step) => fact.settle(step, "abandonMessage", step.properties),
  defer: (fact, step) => fact.settle(step, "deferMessage", step.properties),
  "dead-letter": (fact, step) =>
    fact.settle(step, "deadLetterMessage", {
      deadLetterReason: step.reason, deadLetterErrorDescription: step.description, ...step.properties,
    }),
  renew: (fact, step) => fact.settle(step, "renewMessageLock"),

  async accept(fact, step) {
    const [topic, subscription] = step.from.split("/Subscriptions/");
    const words = subscription ? [topic, subscription] : [topic];
    const wait = (step.seconds || 20) * 1000;
    const client = step.seconds
      ? new ServiceBusClient(settings.strings.plain, { retryOptions: { maxRetries: 0, timeoutInMs: wait } })
      : fact.client;
    if (client !== fact.client) fact.clients.push(client);
    const receiver = step.session
      ? await client.acceptSession(...words, step.session, unrenewed)
      : await client.acceptNextSession(...words, unrenewed);
    fact.names[step.as] = receiver;
    return receiver.sessionId;
  },
  async "get-state"(fact, step) {
    const state = await fact.names[step.session].getSessionState();
    return state === undefined || state === null ? null : state.toString();
  },
  "set-state": (fact, step) => fact.names[step.session].setSessionState(Buffer.from(step.state)),
  "renew-session": (fact, step) => fact.names[step.session].renewSessionLock(),
  close: (fact, step) => fact.names[step.session].close(),

  "add-rule": (fact, step) =>
    fact.client.createRuleManager(step.topic, step.subscription).createRule(...fact.rule(step.rule)),
  "remove-rule": (fact, step) =>
    fact.client.createRuleManager(step.topic, step.subscription).deleteRule(step.name),
  async rules(fact, step) {
    const names = [];
    const manager = fact.client.createRuleManager(step.topic, step.subscription);
    for await (const rule of manager.listRules()) names.push(rule.name);
    return names.sort();
  },

  "create-queue": (fact, step) => fact.administration.createQueue(step.name, optionsOf(step.options || {})),
  async "get-queue"(fact, step) {
    const queue = await fact.administration.getQueue(step.name);
    const lock = Number(/^PT(?:(\d+)M)?(?:(\d+)S)?$/.exec(queue.lockDuration).slice(1).reduce((all, part) => all * 60 + Number(part || 0), 0));
    return { lock, deliveries: queue.maxDeliveryCount, session: queue.requiresSession };
  },
  async "update-queue"(fact, step) {
    const queue = await fact.administration.getQueue(step.name);
    await fact.administration.updateQueue({ ...queue, ...optionsOf(step.options) });
  },
  "delete-queue": (fact, step) => fact.administration.deleteQueue(step.name),
  "queue-exists": (fact, step) => fact.administration.queueExists(step.name),
  "create-topic": (fact, step) => fact.administration.createTopic(step.name),
  "delete-topic": (fact, step) => fact.administration.deleteTopic(step.name),
  "create-subscription": (fact, step) => fact.administration.createSubscription(step.topic, step.name),
  "create-rule": (fact, step) =>
    fact.administration.createRule(step.topic, step.subscription, ...fact.rule(step.rule)),
  "delete-rule": (fact, step) => fact.administration.deleteRule(step.topic, step.subscription, step.name),
  async "admin-rules"(fact, step) {
    const names = [];
    for await (const rule of fact.administration.listRules(step.topic, step.subscription)) names.push(rule.name);
    return names.sort();
  },
  async counts(fact, step) {
    const told = await fact.administration.getQueueRuntimeProperties(step.name);
    return { active: told.activeMessageCount, dead: told.deadLetterMessageCount, scheduled: told.scheduledMessageCount };
  },
};

main((fact) => ask(fact, () => new Fact(), verbs, nameOf));
