// rhea, an AMQP 1.0 client for JavaScript, unchanged: sends messages of all kinds, and prints what comes back.
"use strict";

const rhea = require("rhea");

const { types, message } = rhea;
const port = Number(process.argv[2]);
const container = rhea.create_container();
const sent = [
  { body: "text" },
  {
    body: { a: 1, b: [1, 2, "x"] },
    message_id: "m1",
    application_properties: {
      int: types.wrap_int(5),
      ubyte: types.wrap_ubyte(3),
      symbol: types.wrap_symbol("sym"),
      double: 1.5,
      yes: true,
    },
    durable: true,
    priority: 8,
    message_annotations: { "x-mine": types.wrap_ushort(9) },
    footer: { "x-foot": 1 },
    user_id: Buffer.from("me"),
    content_encoding: "gzip",
    group_sequence: 3,
  },
  { body: message.data_sections([Buffer.from("a"), Buffer.from("b")]) },
  { body: message.sequence_section([1, "two", null]) },
  { body: message.data_section(Buffer.from("bytes")) },
];
const found = [];
let next = 0;
let accepted = 0;

container.on("sendable", ({ sender }) => {
  while (sender.sendable() && next < sent.length) sender.send(sent[next++]);
});
container.on("accepted", () => accepted++);
container.on("rejected", ({ delivery }) => fail(JSON.stringify(delivery.remote_state)));
container.on("disconnected", ({ error }) => fail(error && error.message));
container.on("connection_error", ({ connection }) => fail(connection.error));
container.on("message", ({ message: one, connection }) => {
  found.push({ ...one, message_annotations: Object.keys(one.message_annotations).sort() });
  if (found.length === sent.length) {
    container.removeAllListeners("disconnected");
    connection.once("connection_close", () => {
      console.log(JSON.stringify({ found, accepted }));
      process.exit(0);
    });
    connection.close();
  }
});

function fail(why) {
  console.error(why);
  process.exit(1);
}

const connection = container.connect({ host: "127.0.0.1", port, reconnect: false });
connection.open_receiver({ source: "q", credit_window: 20 });
connection.open_sender("q");
