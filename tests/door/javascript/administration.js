// Azure's own administration client for JavaScript, unchanged, and its messages in web sockets. Prints what it saw.
"use strict";

const { ServiceBusAdministrationClient, ServiceBusClient } = require("@azure/service-bus");
const WebSocket = require("ws");

const [text] = process.argv.slice(2);
const once = { maxRetries: 0, timeoutInMs: 20000 };

async function all(found) {
  const names = [];
  for await (const one of found) names.push(one.name ?? one.subscriptionName ?? one.topicName);
  return names;
}

async function administer(client) {
  const queue = await client.createQueue("orders", {
    lockDuration: "PT30S",
    maxDeliveryCount: 3,
    deadLetteringOnMessageExpiration: true,
    defaultMessageTimeToLive: "P1D",
    userMetadata: "<owner>",
  });
  const updated = await client.updateQueue({ ...queue, lockDuration: "PT40S" });
  await client.createTopic("news");
  await client.createSubscription("news", "large", { maxDeliveryCount: 5, forwardTo: "orders" });
  await client.deleteRule("news", "large", "$Default");
  const rule = await client.createRule(
    "news", "large", "size", { sqlExpression: "size > @least", sqlParameters: { "@least": 10 } }, { sqlExpression: "SET big = TRUE" },
  );
  await client.createRule("news", "large", "lamp", { subject: "lamp", applicationProperties: { colour: "red" } });
  const correlation = await client.getRule("news", "large", "lamp");
  let twice = null;
  await client.createQueue("orders").catch((error) => { twice = [error.code, error.statusCode]; });
  let missing = null;
  await client.getQueue("missing").catch((error) => { missing = [error.code, error.statusCode]; });
  return {
    queue: [queue.name, queue.lockDuration, queue.maxDeliveryCount, queue.defaultMessageTimeToLive, queue.userMetadata],
    updated: updated.lockDuration,
    queues: (await all(client.listQueues())).sort(),
    topics: await all(client.listTopics()),
    subscriptions: await all(client.listSubscriptions("news")),
    rules: (await all(client.listRules("news", "large"))).sort(),
    sql: [rule.filter.sqlExpression, rule.filter.sqlParameters["@least"], rule.action.sqlExpression],
    correlation: [correlation.filter.subject, correlation.filter.applicationProperties.colour],
    exist: [await client.queueExists("orders"), await client.queueExists("missing"), await client.topicExists("news")],
    twice,
    missing,
  };
}

async function message(client) {
  const news = client.createSender("news");
  await news.sendMessages([5, 50].map((size) => ({ body: size, applicationProperties: { size } })));
  const receiver = client.createReceiver("orders");
  const [found] = await receiver.receiveMessages(5, { maxWaitTimeInMs: 20000 });
  await receiver.deadLetterMessage(found, { deadLetterReason: "why" });
  await client.createSender("orders").scheduleMessages({ body: "later" }, new Date(Date.now() + 3600000));
  return { body: found.body, big: found.applicationProperties.big };
}

async function main() {
  const administration = new ServiceBusAdministrationClient(text, { retryOptions: once });
  const told = { administered: await administer(administration) };
  const client = new ServiceBusClient(text, { retryOptions: once, webSocketOptions: { webSocket: WebSocket } });
  told.messages = await message(client);
  await client.close();
  const counts = await administration.getQueueRuntimeProperties("orders");
  told.counts = [counts.totalMessageCount, counts.deadLetterMessageCount, counts.scheduledMessageCount];
  await administration.deleteSubscription("news", "large");
  await administration.deleteTopic("news");
  await administration.deleteQueue("orders");
  told.left = await all(administration.listQueues());
  console.log(JSON.stringify(told));
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
