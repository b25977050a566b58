// Azure's own Service Bus client for JavaScript, unchanged. Prints what it saw, as JSON.
"use strict";

const { ServiceBusClient } = require("@azure/service-bus");

const [text, name] = process.argv.slice(2);
const client = new ServiceBusClient(text, { retryOptions: { maxRetries: 0, timeoutInMs: 20000 } });
const wait = { maxWaitTimeInMs: 20000 };

// A receive of several may end with the first that comes.
async function receive(receiver, count) {
  const found = [];
  while (found.length < count) {
    const some = await receiver.receiveMessages(count - found.length, wait);
    if (some.length === 0) throw new Error(`expected ${count} messages, got ${found.length}`);
    found.push(...some);
  }
  return found;
}

const stories = {
  async settlements() {
    const sender = client.createSender("q");
    const receiver = client.createReceiver("q");
    const date = new Date(0);
    await sender.sendMessages({
      body: { hello: "world" },
      messageId: "m1",
      subject: "s",
      applicationProperties: { number: 1, text: "x", yes: true, date },
    });
    let [message] = await receive(receiver, 1);
    const first = [message.body, message.messageId, message.subject, message.applicationProperties, message.deliveryCount];
    await receiver.abandonMessage(message, { tried: 1 });
    [message] = await receive(receiver, 1);
    const again = [message.deliveryCount, message.applicationProperties.tried];
    await receiver.deferMessage(message);
    const [deferred] = await receiver.receiveDeferredMessages(message.sequenceNumber);
    await receiver.deadLetterMessage(deferred, { deadLetterReason: "why", deadLetterErrorDescription: "because" });
    const letters = client.createReceiver("q", { subQueueType: "deadLetter" });
    const [dead] = await receive(letters, 1);
    await letters.completeMessage(dead);
    return { first, again, state: deferred.state, dead: [dead.deadLetterReason, dead.deadLetterErrorDescription] };
  },

  async batches() {
    const sender = client.createSender("q");
    const receiver = client.createReceiver("q");
    const batch = await sender.createMessageBatch();
    for (const body of ["a", "b", "c"]) batch.tryAddMessage({ body });
    await sender.sendMessages(batch);
    const peeked = (await receiver.peekMessages(10)).map((message) => message.body);
    const found = await receive(receiver, 3);
    const until = await receiver.renewMessageLock(found[0]);
    for (const message of found) await receiver.completeMessage(message);
    const numbers = await sender.scheduleMessages([{ body: "later" }], new Date(Date.now() + 3600000));
    await sender.cancelScheduledMessages(numbers);
    const deleted = client.createReceiver("q", { receiveMode: "receiveAndDelete" });
    await sender.sendMessages({ body: "gone" });
    const [gone] = await receive(deleted, 1);
    return { peeked, found: found.map((one) => one.body), renewed: until > new Date(), gone: gone.body };
  },

  async subscribes() {
    const sender = client.createSender("q");
    const receiver = client.createReceiver("q");
    const bodies = [];
    await new Promise((resolve, reject) => {
      receiver.subscribe({
        processMessage: async (message) => {
          bodies.push(message.body);
          if (bodies.length === 3) resolve();
        },
        processError: async (args) => reject(args.error),
      });
      sender.sendMessages([{ body: 1 }, { body: 2 }, { body: 3 }]).catch(reject);
    });
    await receiver.close();
    return { bodies: bodies.sort() };
  },

  async sessions() {
    const sender = client.createSender("s");
    await sender.sendMessages([1, 2].map((body) => ({ body, sessionId: "A" })));
    const receiver = await client.acceptNextSession("s");
    const locked = receiver.sessionLockedUntilUtc > new Date();
    await receiver.setSessionState("half");
    const state = String(await receiver.getSessionState());
    const renewed = (await receiver.renewSessionLock()) > new Date();
    const found = await receive(receiver, 2);
    for (const message of found) await receiver.completeMessage(message);
    let refused;
    try {
      await client.acceptSession("s", "A");
    } catch (error) {
      refused = error.code;
    }
    return { id: receiver.sessionId, locked, state, renewed, bodies: found.map((one) => one.body), refused };
  },

  async rules() {
    const manager = client.createRuleManager("t", "sub");
    await manager.createRule("large", { sqlExpression: "amount >= 10" }, { sqlExpression: "SET big = TRUE" });
    await manager.deleteRule("$Default");
    const rules = [];
    for await (const rule of manager.listRules()) rules.push([rule.name, rule.filter.sqlExpression, rule.action.sqlExpression]);
    const sender = client.createSender("t");
    await sender.sendMessages([5, 50].map((amount) => ({ body: amount, applicationProperties: { amount } })));
    const receiver = client.createReceiver("t", "sub");
    const [message] = await receive(receiver, 1);
    await receiver.completeMessage(message);
    return { rules, body: message.body, big: message.applicationProperties.big };
  },

  async errors() {
    // What is wrong stays wrong: nothing is tried again.
    const codes = [];
    for (const work of [
      () => client.createSender("missing").sendMessages({ body: 1 }),
      () => client.createReceiver("q").receiveDeferredMessages([require("long").fromNumber(99)]),
    ]) {
      try {
        await work();
        codes.push("none");
      } catch (error) {
        codes.push(error.code);
      }
    }
    return { codes };
  },
};

stories[name]()
  .then(async (seen) => {
    await client.close();
    console.log(JSON.stringify(seen));
    process.exit(0);
  })
  .catch((error) => {
    console.error(error.stack);
    process.exit(1);
  });
