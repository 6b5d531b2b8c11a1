// Show a message: its writer, time, text, reactions and thread, and its events' deliveries.
import { clock, h, toast } from "./dom.js";
import { icon } from "./icons.js";
import { emoji, inline, rich } from "./text.js";
import { deliveriesOf, offered, request, store, workspace } from "./store.js";
import { block, task } from "./blocks.js";
import { messageForm } from "./form.js";
import { menuButton } from "./menu.js";
import { shortcutItems } from "./shortcuts.js";
import { deliveryLine } from "./delivery.js";

// The reactions that a press gives; they are icons.
const QUICK = { "+1": "up", eyes: "eyes", white_check_mark: "check", tada: "party" };
const symbol = (name) => (Object.hasOwn(QUICK, name) ? icon(QUICK[name]) : emoji(name));

export function signatureOf(message, follows, inThread) {
  return JSON.stringify([message, deliveriesOf(message), follows, inThread, store.user, workspace().installed]);
}

export function messageItem({ message, follows, inThread, openThread }) {
  const app = Boolean(message.bot_id);
  const name = message.username || store.users.get(message.user)?.real_name || message.user;
  const item = h("li", {
    class: `message${follows ? " follows" : ""}${app ? " app" : ""}`,
    "aria-label": `${name}, ${clock(message.ts)}`,
  });
  const time = h(
    "time",
    {
      datetime: new Date(message.ts * 1000).toISOString(),
      title: new Date(message.ts * 1000).toLocaleString(),
    },
    clock(message.ts),
  );
  item.append(
    ...[
      follows ? h("div", { class: "gutter" }, time) : avatar(message.user ?? message.bot_id, name),
      h(
        "div",
        { class: "body" },
        !follows &&
          h(
            "p",
            { class: "who" },
            h("strong", {}, name),
            app && h("span", { class: "badge" }, "APP"),
            partner(message),
            time,
          ),
        message.visible_to && h("p", { class: "note" }, "Only visible to you"),
        content(message),
        reactions(message),
        !inThread && threadLine(message, openThread),
        inThread &&
          message.subtype === "thread_broadcast" &&
          h("p", { class: "note" }, "also sent to the channel"),
        deliveriesOf(message).map(deliveryLine),
      ),
      actions(message, inThread, openThread),
    ].filter(Boolean),
  );
  return item;
}

// In a shared channel, name the workspace of a writer from elsewhere.
function partner({ user }) {
  const team = store.users.get(user)?.team_id;
  return team && team !== store.team.id && h("span", { class: "badge from" }, workspace(team).name);
}

export function avatar(id, name) {
  const bot = store.users.get(id)?.is_bot;
  const hue = ([...store.users.keys()].indexOf(id) + 6) % 6;
  return h(
    "span",
    { class: `avatar hue${hue}${bot ? " bot" : ""}`, "aria-hidden": "true" },
    bot ? icon("robot") : name[0],
  );
}

function content(message) {
  if (message.subtype === "tombstone") return h("p", { class: "text gone" }, message.text);
  // A person's message has a block with the same content as its text.
  const blocks = (message.blocks || []).filter(({ type }) => type !== "rich_text" || !message.client_msg_id);
  const markdown = blocks.length === 1 && blocks[0].type === "markdown";
  const shown = message.streamed ? blocks.filter(({ type }) => type === "markdown") : [];
  const rest = message.text.slice(shown.reduce((sum, part) => sum + part.text.length, 0));
  const said = (!blocks.length || markdown || message.streamed) && (rest || message.streaming) && text(message, rest);
  return [
    message.plan && h("p", { class: "plan" }, message.plan),
    message.tasks.map(task),
    !shown.length && said,
    message.edited && h("span", { class: "note" }, "(edited)"),
    (!markdown || shown.length > 0) && blocks.map((part) => block(part, messageForm(message))),
    shown.length > 0 && said,
    (message.files || []).map(file),
    (message.attachments || []).map((part) =>
      h("div", { class: "attachment" }, inline(part.text || part.fallback || "")),
    ),
  ];
}

function file(each) {
  const size = each.size < 1024 ? `${each.size} bytes` : `${Math.round(each.size / 1024)} kB`;
  const name = each.title || each.name;
  const path = new URL(each.url_private_download, location.href).pathname;
  return h(
    "a",
    { class: "file", href: path, download: each.name },
    h("span", { class: "file-icon", "aria-hidden": "true" }, icon("file")),
    h("span", {}, name, h("small", {}, `${each.name === name ? "" : `${each.name} · `}${size}`)),
  );
}

function text(message, said) {
  const caret =
    message.streaming && h("span", { class: "caret", role: "img", "aria-label": "still writing" });
  return h("div", { class: "text" }, rich(said), caret);
}

async function react(message, name) {
  try {
    await request("POST", "/control/reactions", {
      channel: message.channel,
      ts: message.ts,
      name,
      user: store.user,
    });
  } catch (error) {
    toast(error.message, "bad");
  }
}

function reactions(message) {
  if (!message.reactions?.length) return null;
  return h(
    "div",
    { class: "reactions" },
    message.reactions.map(({ name, users, count }) => {
      const names = users.map((id) => store.users.get(id)?.real_name || id).join(", ");
      const mine = users.includes(store.user);
      return h(
        "button",
        {
          class: mine ? "reaction mine" : "reaction",
          "aria-pressed": String(mine),
          "aria-label": `${name}, ${count}: ${names}`,
          title: `${names} reacted with :${name}:`,
          dataset: { focus: `r-${name}` },
          onclick: () => react(message, name),
        },
        symbol(name),
        " ",
        h("span", {}, String(count)),
      );
    }),
  );
}

export function repliesLabel({ reply_count: count }) {
  return count === 1 ? "1 reply" : `${count} replies`;
}

function threadLine(message, openThread) {
  if (!message.reply_count) return null;
  return h(
    "button",
    { class: "thread-line", dataset: { focus: "thread" }, onclick: () => openThread(message.ts) },
    (message.reply_users || []).slice(0, 4).map((id) => avatar(id, store.users.get(id)?.real_name || id)),
    h("span", { class: "link" }, repliesLabel(message)),
    h("span", { class: "note" }, `last ${clock(message.latest_reply)}`),
  );
}

function actions(message, inThread, openThread) {
  if (message.subtype === "tombstone" || message.visible_to) return null;
  const remove = async () => {
    try {
      await request("DELETE", "/control/messages", {
        channel: message.channel,
        ts: message.ts,
        user: store.user,
      });
    } catch (error) {
      toast(error.message, "bad");
    }
  };
  return h(
    "div",
    { class: "hover", role: "group", "aria-label": "Message actions" },
    Object.keys(QUICK).map((name) =>
      h(
        "button",
        {
          class: "plain",
          "aria-label": `React with ${name}`,
          title: `:${name}:`,
          onclick: () => react(message, name),
        },
        symbol(name),
      ),
    ),
    !inThread &&
      h(
        "button",
        {
          class: "plain",
          "aria-label": "Reply in thread",
          title: "Reply in thread",
          onclick: () => openThread(message.thread_ts || message.ts),
        },
        icon("speech"),
      ),
    offered("shortcuts").some(({ type }) => type === "message") &&
      menuButton({
        label: "Message shortcuts",
        face: icon("more"),
        focus: "more",
        items: () => shortcutItems("message", message),
      }),
    message.user === store.user &&
      h(
        "button",
        { class: "plain", "aria-label": "Delete the message", title: "Delete", onclick: remove },
        icon("trash"),
      ),
  );
}
