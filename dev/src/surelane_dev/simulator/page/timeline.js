// Show the messages of a channel or a thread in order, with the days between them.
import { h, reconcile, toast } from "./dom.js";
import { messageItem, repliesLabel, signatureOf } from "./message.js";
import { messagesOf, request, store, workspace } from "./store.js";

const LATEST = 300; // messages that a channel shows; under load there are thousands
const TOGETHER = 300; // seconds within which one person's messages share a heading

// The log scrolls; the list in it has the messages.
export function renderMessages(log, channel, thread, openThread) {
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 90;
  const place = `${store.team.id}/${channel}/${thread}`;
  const fresh = log.place !== place;
  log.place = place;
  reconcile(log.firstElementChild, items(channel, thread, openThread), (item) => item.make());
  if (fresh || atEnd) log.scrollTop = log.scrollHeight;
}

function items(channel, thread, openThread) {
  const made = [];
  let before = null;
  for (const message of messagesOf(channel, thread).slice(thread ? 0 : -LATEST)) {
    if (!thread && (!before || dayOf(before) !== dayOf(message))) made.push(divider(dayOf(message)));
    const follows = Boolean(before) && standsTogether(before, message);
    const inThread = Boolean(thread);
    made.push({
      key: message.ts,
      signature: signatureOf(message, follows, inThread),
      make: () => messageItem({ message, follows, inThread, openThread }),
    });
    if (thread === message.ts && message.reply_count)
      made.push(divider(repliesLabel(message), "day replies"));
    before = message;
  }
  const statuses = statusesOf(channel, thread);
  made.push(...statuses.map(statusItem));
  made.push(
    ...workingOf(channel, thread)
      .filter((session) => !statuses.some((status) => status.thread_ts === session.thread_ts))
      .map((session) => statusItem({ ...session, text: "is working" })),
  );
  return made.length ? made : [{ key: "empty", signature: emptyHint(channel), make: () => emptyNote(channel) }];
}

const dayOf = (message) => new Date(message.ts * 1000).toDateString();

function standsTogether(before, message) {
  const sameAuthor = before.user === message.user && before.username === message.username;
  const closed = before.reply_count || before.subtype === "tombstone";
  return sameAuthor && !closed && message.ts - before.ts < TOGETHER;
}

function divider(label, kind = "day") {
  const text = label === new Date().toDateString() ? "Today" : label;
  return { key: kind + label, signature: text, make: () => h("li", { class: kind }, h("span", {}, text)) };
}

function statusesOf(channel, thread) {
  return store.statuses.filter(
    (status) =>
      status.channel === channel &&
      status.until * 1000 > Date.now() &&
      (!thread || status.thread_ts === thread),
  );
}

export const sessionOf = (channel, thread) =>
  store.sessions.find((session) => session.channel === channel && session.thread_ts === thread);

const workingOf = (channel, thread) =>
  store.sessions.filter(
    (session) =>
      session.channel === channel &&
      session.status === "processing" &&
      (!thread || session.thread_ts === thread),
  );

function statusItem(status) {
  const dots = () => h("span", { class: "dots", "aria-hidden": "true" }, h("i"), h("i"), h("i"));
  const working = sessionOf(status.channel, status.thread_ts)?.status === "processing";
  const stops = working && store.canStop;
  return {
    key: `status ${status.thread_ts}`,
    signature: JSON.stringify([status.text, stops]),
    make: () =>
      h(
        "li",
        { class: "status" },
        dots(),
        h("span", {}, `${store.bot.real_name} ${status.text}`),
        stops &&
          h(
            "button",
            { class: "small stop", dataset: { focus: "stop" }, onclick: () => stop(status) },
            "■ Stop",
          ),
      ),
  };
}

async function stop({ channel, thread_ts }) {
  try {
    await request("POST", "/control/stop", { channel, thread_ts, user: store.user });
  } catch (error) {
    toast(error.message, "bad");
  }
}

function emptyHint(id) {
  const channel = store.channels.get(id);
  if (!workspace().installed) return "The app is not installed in this workspace and hears nothing of it.";
  return channel.is_im || channel.members.includes(store.bot.id)
    ? "Write something to the bot: the event goes to ingest, and the answer comes back here."
    : "The bot is not in this channel and hears nothing of it.";
}

function emptyNote(id) {
  const hint = h("p", { class: "note" }, emptyHint(id));
  return h("li", { class: "empty" }, h("p", {}, "Nothing here yet."), hint);
}
