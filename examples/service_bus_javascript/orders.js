// Orders go to a topic; one subscription takes the large ones, and a bad one becomes a dead letter.
//
//   lazaretto emulator --config Config.json      prints the connection string
//   npm install
//   node orders.js "Endpoint=sb://localhost:5672;…"

import { ServiceBusClient } from "@azure/service-bus";
import WebSocket from "ws";

const text = process.argv[2] ?? process.env.SERVICE_BUS;
if (!text) {
  console.error("give the connection string that lazaretto prints");
  process.exit(2);
}
// In browsers, and behind proxies that let only HTTP through: AMQP in a web socket.
const options = process.argv.includes("--web-socket") ? { webSocketOptions: { webSocket: WebSocket } } : {};
const client = new ServiceBusClient(text, options);

const sender = client.createSender("orders");
await sender.sendMessages(
  [5, 50, 500].map((amount) => ({
    body: { amount },
    messageId: `order-${amount}`,
    applicationProperties: { amount },
  })),
);

const receiver = client.createReceiver("orders", "large");
for (const message of await receiver.receiveMessages(2, { maxWaitTimeInMs: 5000 })) {
  if (message.body.amount > 100) {
    await receiver.deadLetterMessage(message, { deadLetterReason: "TooLarge" });
  } else {
    console.log("order", message.body.amount);
    await receiver.completeMessage(message);
  }
}

const letters = client.createReceiver("orders", "large", { subQueueType: "deadLetter" });
for (const letter of await letters.receiveMessages(1, { maxWaitTimeInMs: 5000 })) {
  console.log("dead letter", letter.body.amount, letter.deadLetterReason);
  await letters.completeMessage(letter);
}
await client.close();
