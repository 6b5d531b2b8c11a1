// Show Block Kit and the task cards of streamed messages, as far as bots need them.
import { h, toast } from "./dom.js";
import { request, store } from "./store.js";
import { emoji, inline, rich } from "./text.js";

export function task(part) {
  const marks = { pending: "○", in_progress: "◌", complete: "✓", error: "✕" };
  return h(
    "p",
    { class: `task ${part.status || ""}` },
    h("span", { "aria-hidden": "true" }, marks[part.status] || "○"),
    " ",
    part.title || part.id,
    part.details && h("small", {}, part.details),
  );
}

export function block(part, message) {
  const text = (object) => (object ? (object.type === "plain_text" ? [object.text] : rich(object.text)) : []);
  switch (part.type) {
    case "header":
      return h("p", { class: "block headline" }, text(part.text));
    case "divider":
      return h("hr");
    case "markdown":
      return h("div", { class: "block text" }, rich(part.text));
    case "section":
      return h(
        "div",
        { class: "block section" },
        h(
          "div",
          { class: "text" },
          text(part.text),
          part.fields &&
            h(
              "div",
              { class: "fields" },
              part.fields.map((field) => h("div", {}, text(field))),
            ),
        ),
        part.accessory && element(part.accessory, message),
      );
    case "context":
      return h(
        "div",
        { class: "block context" },
        (part.elements || []).map((each) => h("span", {}, text(each))),
      );
    case "actions":
      return h(
        "div",
        { class: "block actions-block" },
        (part.elements || []).map((each) => element(each, message)),
      );
    case "rich_text":
      return h(
        "div",
        { class: "block text" },
        (part.elements || []).flatMap((section) => richSection(section)),
      );
    default:
      return h("p", { class: "block note" }, `[${part.type}]`);
  }
}

function richSection(section) {
  const styled = (each) =>
    each.type === "user"
      ? inline(`<@${each.user_id}>`)
      : each.type === "link"
        ? inline(`<${each.url}|${each.text || each.url}>`)
        : each.type === "emoji"
          ? [emoji(each.name)]
          : each.style?.bold
            ? [h("strong", {}, each.text)]
            : each.style?.code
              ? [h("code", {}, each.text)]
              : [each.text || ""];
  const inner = (section.elements || []).flatMap((each) =>
    each.elements ? richSection(each) : styled(each),
  );
  return section.type === "rich_text_preformatted"
    ? [h("pre", {}, inner)]
    : section.type === "rich_text_quote"
      ? [h("blockquote", {}, inner)]
      : [h("div", {}, inner)];
}

function element(part, message) {
  if (part.type !== "button") return h("span", { class: "note" }, `[${part.type}]`);
  const press = async (event) => {
    event.target.disabled = true;
    try {
      const answer = await request("POST", "/control/actions", {
        channel: message.channel,
        ts: message.ts,
        action_id: part.action_id,
        user: store.user,
      });
      if (answer.problem) toast(`The app did not take it: ${answer.problem} ${answer.status || ""}`, "bad");
    } catch (error) {
      toast(error.message, "bad");
    } finally {
      event.target.disabled = false;
    }
  };
  return h(
    "button",
    { class: `block-button ${part.style || ""}`, dataset: { focus: `b-${part.action_id}` }, onclick: press },
    part.text?.text || part.action_id,
  );
}
