// A form for arguments, made from a tool's JSON Schema or, without one, from the arguments themselves.
import { el, json } from "./dom.js";

function kindOf(schema, value) {
  if (Array.isArray(schema?.enum) && schema.enum.every((one) => typeof one === "string")) return "enum";
  const type = Array.isArray(schema?.type) ? schema.type.find((one) => one !== "null") : schema?.type;
  return type ?? (value === null || value === undefined ? "json" : Array.isArray(value) ? "array" : typeof value);
}

function control(kind, schema, value) {
  if (kind === "enum") {
    const options = schema.enum.map((one) => el("option", { value: one, text: one, selected: one === value }));
    return el("select", {}, ...options);
  }
  if (kind === "boolean") return el("input", { type: "checkbox", checked: value === true });
  if (kind === "integer" || kind === "number") {
    const step = kind === "integer" ? "1" : "any";
    return el("input", { type: "number", step, min: schema?.minimum, max: schema?.maximum, value: value ?? "" });
  }
  const made = el(kind === "string" && String(value ?? "").length < 60 ? "input" : "textarea", { autocomplete: "off" });
  made.value = kind === "string" ? (value ?? "") : value === undefined ? "" : json(value);
  return made;
}

/** Read a field's value; undefined where it was left empty. Throws where it is no JSON. */
function read(kind, field) {
  if (kind === "boolean") return field.checked;
  if (kind === "enum" || kind === "string") return field.value;
  if (!field.value.trim()) return undefined;
  if (kind === "integer" || kind === "number") return Number(field.value);
  return JSON.parse(field.value);
}

/** Make the fields; `value()` gives the arguments, or null after marking the field that is wrong. */
export function schemaForm(schema, initial) {
  const properties = schema?.properties ?? {};
  const names = [...new Set([...Object.keys(properties), ...Object.keys(initial)])];
  const required = new Set(schema?.required ?? []);
  const fields = names.map((name) => {
    const kind = kindOf(properties[name], initial[name]);
    const field = control(kind, properties[name], initial[name]);
    field.required = required.has(name) && kind !== "boolean";
    const note = el("span", { class: "problem", role: "alert" });
    const title = properties[name]?.title ?? name;
    const label = el("label", {}, el("span", { text: required.has(name) ? `${title} *` : title }), field, note);
    return { name, kind, field, note, label, untouched: initial[name] === undefined };
  });
  for (const one of fields) one.field.addEventListener("input", () => (one.untouched = false));

  function value() {
    const found = {};
    for (const { name, kind, field, note, untouched } of fields) {
      note.textContent = "";
      try {
        const given = untouched && !required.has(name) ? undefined : read(kind, field);
        if (given !== undefined) Object.defineProperty(found, name, { value: given, enumerable: true });
      } catch {
        note.textContent = "This is not JSON.";
        field.focus();
        return null;
      }
    }
    return found;
  }

  return { element: el("div", { class: "fields" }, ...fields.map((one) => one.label)), value };
}
