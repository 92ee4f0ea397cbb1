// A client that uses tasks, written with the official TypeScript SDK. Prints what it saw as JSON.

const [sdk, url, token, tool] = process.argv.slice(2);
const { Client } = await import(`${sdk}/client/index.js`);
const { StreamableHTTPClientTransport } = await import(`${sdk}/client/streamableHttp.js`);
const types = await import(`${sdk}/types.js`);

async function connect() {
  const client = new Client({ name: "tasks", version: "1" }, { capabilities: { elicitation: {} } });
  client.setRequestHandler(types.ElicitRequestSchema, ({ params }) => {
    seen.asked.push(params.message);
    return { action: "accept", content: { interpretation: "snake" } };
  });
  client.setNotificationHandler(types.TaskStatusNotificationSchema, ({ params }) => {
    seen.statuses.push(params.taskId);
  });
  const requestInit = { headers: { Authorization: `Bearer ${token}` } };
  await client.connect(new StreamableHTTPClientTransport(new URL(url), { requestInit }));
  return client;
}

const seen = { asked: [], statuses: [], messages: [] };
const first = await connect();
seen.capabilities = first.getServerCapabilities().tasks;
const { tools } = await first.listTools();
seen.support = tools.find(({ name }) => name === tool)?.execution?.taskSupport;
const call = { name: tool, arguments: { topic: "python", ambiguous: true } };
const stream = first.experimental.tasks.callToolStream(call, types.CallToolResultSchema, { task: { ttl: 60_000 } });
for await (const message of stream) {
  if (seen.messages.at(-1) !== message.type) seen.messages.push(message.type);
  if (message.type === "taskCreated") seen.id = message.task.taskId;
  if (message.type === "result") seen.result = message.result;
  if (message.type === "error") seen.error = String(message.error);
}

// A task outlives the connection of its client.
const params = { name: tool, arguments: { topic: "later" }, task: { ttl: 60_000 } };
const { task } = await first.request({ method: "tools/call", params }, types.CreateTaskResultSchema);
await first.close();
const second = await connect();
seen.listed = (await second.experimental.tasks.listTasks()).tasks.some(({ taskId }) => taskId === task.taskId);
await second.experimental.tasks.cancelTask(task.taskId);
seen.cancelled = (await second.experimental.tasks.getTask(task.taskId)).status;
await second.close();
console.log(JSON.stringify(seen));
process.exit(0);
