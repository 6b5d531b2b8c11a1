// The message box. In a channel a chip in front mentions the bot; a person can remove it.
import { h, toast } from "./dom.js";
import { icon } from "./icons.js";
import { completion } from "./completion.js";
import { menuButton } from "./menu.js";
import { shortcutItems } from "./shortcuts.js";
import { request, store, workspace } from "./store.js";

const addressable = (channel) => channel && !channel.is_im && workspace().installed;

export function composer(host, { id, label, place, sent = () => {} }) {
  let mention = true;
  const text = h("textarea", { id, rows: 1, "aria-label": label, autocomplete: "off", enterkeyhint: "send" });
  const send = h("button", { class: "send", "aria-label": "Send", title: "Send (Enter)" }, icon("send"));
  const chip = h("button", { class: "chip", type: "button", onclick: () => setMention(!mention) });
  const commands = completion(text, id, () => changedText());
  const shortcuts = menuButton({
    label: "Shortcuts",
    face: icon("bolt"),
    className: "plain shortcuts",
    items: () => shortcutItems("global"),
    note: "The app has no global shortcuts here.",
  });
  const form = h(
    "form",
    { class: "composer", onsubmit: submit },
    commands.list,
    h("div", { class: "field" }, chip, text),
    h(
      "div",
      { class: "bar" },
      h(
        "span",
        { class: "hint" },
        h("kbd", {}, "Enter"),
        " sends · ",
        h("kbd", {}, "Shift Enter"),
        " new line",
        h("span", { class: "wide" }, " · ", h("kbd", {}, "/"), " command"),
      ),
      h("span", { class: "buttons" }, shortcuts, send),
    ),
  );
  host.replaceChildren(form);

  function setMention(on) {
    mention = on;
    show();
    text.focus();
  }

  function show() {
    const { channel, thread } = place();
    const found = store.channels.get(channel);
    const possible = addressable(found);
    chip.hidden = !possible;
    chip.textContent = mention ? `@${store.bot?.real_name} ✕` : `+ @${store.bot?.real_name}`;
    chip.classList.toggle("off", !mention);
    chip.setAttribute("aria-pressed", String(mention));
    chip.setAttribute("aria-label", mention ? "Do not mention the bot" : "Mention the bot");
    text.placeholder = thread
      ? "Reply"
      : matchMedia("(max-width: 759px)").matches
        ? "Message"
        : `Message ${found?.is_im ? store.bot.real_name : `#${found?.name}`}`;
    send.disabled = !text.value.trim();
  }

  async function submit(event) {
    event.preventDefault();
    const typed = text.value.trim();
    if (!typed) return;
    text.value = "";
    commands.hide();
    fit();
    try {
      const me = /^\/me\s+/.exec(typed);
      if (me) await say(typed.slice(me[0].length), true);
      else await (typed.startsWith("/") ? command(typed) : say(typed));
    } catch (error) {
      text.value ||= typed; // unless the person writes the next message already
      toast(error.message, "bad");
    }
    show();
  }

  const say = async (typed, me = false) => {
    const { channel, thread } = place();
    const addressed = mention && addressable(store.channels.get(channel));
    const { message, events } = await request("POST", "/control/messages", {
      text: typed,
      me,
      channel,
      thread_ts: thread || null,
      user: store.user,
      mention: addressed,
    });
    if (events.length) sent(message);
  };

  async function command(typed) {
    const [name, ...rest] = typed.split(/\s+/);
    const answer = await request("POST", "/control/commands", {
      command: name,
      text: rest.join(" "),
      channel: place().channel,
      user: store.user,
    });
    if (!answer.problem) toast(`${name} was taken: ${answer.status} in ${answer.ms} ms`);
  }

  function fit() {
    text.style.height = "auto";
    text.style.height = `${Math.min(text.scrollHeight, 180)}px`;
  }

  function changedText() {
    commands.show();
    fit();
    show();
  }

  text.addEventListener("input", changedText);
  text.addEventListener("blur", () => commands.hide());
  text.addEventListener("keydown", (event) => {
    if (commands.key(event)) return;
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      form.requestSubmit();
    }
    if (event.key === "Backspace" && mention && text.selectionStart === 0 && text.selectionEnd === 0)
      setMention(false);
  });
  return { show, focus: () => text.focus() };
}
