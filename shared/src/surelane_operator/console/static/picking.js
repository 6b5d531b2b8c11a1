// Selects rows of a table, one by one or all that match, and changes them together.
export function picking() {}
