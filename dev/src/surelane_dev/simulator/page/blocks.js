// Show the blocks of Block Kit, and the task cards of streamed messages.
import { h } from "./dom.js";
import { element } from "./elements.js";
import { icon } from "./icons.js";
import { emoji, inline, plain, rich, textOf } from "./text.js";

export function task(part) {
  const marks = { pending: "○", in_progress: "◌", complete: "✓", error: "✕" };
  return h(
    "p",
    { class: `task ${part.status || ""}` },
    h("span", { "aria-hidden": "true" }, marks[part.status] || "○"),
    " ",
    part.title || part.id,
    part.details && h("small", {}, part.details),
    (part.sources || []).map(({ url, text }) => h("small", {}, inline(`<${url}|${text.replace(/[<>|]/g, " ")}>`))),
  );
}

// `form` keeps the values of the inputs.
export function block(part, form) {
  switch (part.type) {
    case "header":
      return h("p", { class: "block headline" }, textOf(part.text));
    case "divider":
      return h("hr");
    case "markdown":
      return h("div", { class: "block text" }, rich(part.text));
    case "section":
      return section(part, form);
    case "context":
      return h(
        "div",
        { class: "block context" },
        (part.elements || []).map((each) =>
          h("span", {}, each.type === "image" ? image(each) : textOf(each)),
        ),
      );
    case "actions":
    case "context_actions":
      return h(
        "div",
        { class: `block actions-block ${part.type}` },
        (part.elements || []).map((each) => element(part, each, form)),
      );
    case "input":
      return input(part, form);
    case "image":
      return h("p", { class: "block" }, image(part));
    case "rich_text":
      return h(
        "div",
        { class: "block text" },
        (part.elements || []).flatMap((each) => richSection(each)),
      );
    case "table":
    case "data_table":
      return table(
        part.rows.map((row) => row.map(cell)),
        (part.column_settings || []).map((column) => column?.align || "left"),
      );
    case "data_visualization":
      return chart(part);
    case "card":
      return boxed(part, h("p", { class: "note" }, textOf(part.subtitle)), h("div", { class: "text" }, textOf(part.body)));
    case "carousel":
      return h("div", { class: "block scrolled" }, part.elements.map((each) => block(each, form)));
    case "container":
      return boxed(part, ...part.child_blocks.map((each) => block(each, form)));
    case "task_card":
      return task(part);
    case "plan":
      return h("div", { class: "block" }, h("p", { class: "plan" }, part.title), (part.tasks || []).map(task));
    default:
      return h("p", { class: "block note" }, `[${part.type}]`);
  }
}

const boxed = (part, ...inside) => h("div", { class: "block card" }, h("strong", {}, textOf(part.title)), ...inside);

function section(part, form) {
  const fields =
    part.fields &&
    h(
      "div",
      { class: "fields" },
      part.fields.map((field) => h("div", {}, textOf(field))),
    );
  const accessory =
    part.accessory &&
    (part.accessory.type === "image"
      ? image(part.accessory)
      : element(part, part.accessory, form, { label: plain(part.text) }));
  return h(
    "div",
    { class: "block section" },
    h("div", { class: "text" }, textOf(part.text), fields),
    accessory,
  );
}

// The first row is the header.
function table([head, ...rows], align) {
  const cells = (name, row) =>
    h(
      "tr",
      {},
      row.map((each, at) => h(name, { class: align[at] || "left" }, each)),
    );
  return h(
    "div",
    { class: "block scrolled" },
    h(
      "table",
      { class: "data" },
      h("thead", {}, cells("th", head)),
      h(
        "tbody",
        {},
        rows.map((row) => cells("td", row)),
      ),
    ),
  );
}

const cell = (each) => (each.type === "rich_text" ? each.elements.flatMap(richSection) : [each.text || ""]);

// A chart is shown as the table of its figures.
function chart({ title, chart }) {
  const figures =
    chart.type === "pie"
      ? [["", title], ...chart.segments.map(({ label, value }) => [label, String(value)])]
      : [
          ["", ...chart.series.map(({ name }) => name)],
          ...chart.axis_config.categories.map((category, at) => [
            category,
            ...chart.series.map(({ data }) => String(data[at].value)),
          ]),
        ];
  return h(
    "figure",
    { class: "block" },
    h("figcaption", { class: "plan" }, icon("chart"), ` ${title} (${chart.type})`),
    table(
      figures.map((row) => row.map((each) => [each])),
      figures[0].map((_, at) => (at ? "right" : "left")),
    ),
  );
}

// The page loads nothing from elsewhere, so it names images.
const image = (part) => h("span", { class: "note" }, icon("image"), ` ${part.alt_text || plain(part.title)}`);

let numbers = 0;

function input(part, form) {
  const id = `input-${++numbers}`;
  const label = { id: `${id}-label`, for: id };
  const corrected = (event) => markInput(event.currentTarget, "");
  return h(
    "div",
    { class: "block input", dataset: { block: part.block_id }, oninput: corrected, onchange: corrected },
    h("label", label, plain(part.label), part.optional && h("span", { class: "note" }, " (optional)")),
    element(part, part.element, form, { id, label: plain(part.label) }),
    part.hint && h("p", { class: "note" }, plain(part.hint)),
    h("p", { class: "input-error", id: `${id}-error`, hidden: true }),
  );
}

// Show errors under the inputs of some blocks, by their ids, and remove the others. Focus the first one.
export function showErrors(holder, errors) {
  for (const node of holder.querySelectorAll(".block.input")) markInput(node, errors[node.dataset.block]);
  holder.querySelector(".wrong")?.querySelector("input, textarea, select")?.focus();
}

function markInput(node, error) {
  const line = node.querySelector(".input-error");
  const control = node.querySelector("input, textarea, select");
  line.textContent = error || "";
  line.hidden = !error;
  node.classList.toggle("wrong", Boolean(error));
  for (const [name, value] of [
    ["aria-invalid", "true"],
    ["aria-describedby", line.id],
  ])
    if (error) control?.setAttribute(name, value);
    else control?.removeAttribute(name);
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
              : each.style?.italic
                ? [h("em", {}, each.text)]
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
