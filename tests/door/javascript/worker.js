// A worker on Azure's client: CONNECTION_STRING QUEUE CALLS [SESSION]. It prints a line for each message, and
// ends when it has seen the body "end"; "exit" kills it, "down" is abandoned, all else is completed.
// While there is the file that DOWN names in the environment, all is abandoned.
const { ServiceBusClient } = require("@azure/service-bus");
const fs = require("fs");

async function main() {
  const [string, queue, calls, session] = process.argv.slice(2);
  const client = new ServiceBusClient(string);
  const receiver = session ? await client.acceptSession(queue, session) : client.createReceiver(queue);
  const options = { autoCompleteMessages: false, maxConcurrentCalls: Number(calls) };
  const over = new Promise((resolve) => {
    receiver.subscribe({
      processMessage: async (message) => {
        const body = message.body.toString();
        fs.writeSync(1, `${body} ${message.deliveryCount}\n`);
        if (body === "exit") process.abort();
        if (body === "down" || fs.existsSync(process.env.DOWN || "")) return receiver.abandonMessage(message);
        await receiver.completeMessage(message);
        if (body === "end") resolve();
      },
      processError: async (args) => fs.writeSync(2, `${args.error}\n`),
    }, options);
  });
  await over;
  await client.close();
}

main().catch((error) => { console.error(error); process.exit(1); });
