// Names the cells of tables whose rows are cards on a phone, where no head stands above them.
export function nameCells(root = document) {
  for (const table of root.querySelectorAll(".cards table")) {
    const heads = [...table.tHead.rows[0].cells].map((cell) => cell.textContent.trim());
    for (const row of table.tBodies[0].rows) {
      for (const cell of row.cells) {
        cell.dataset.label = heads[cell.cellIndex];
        cell.toggleAttribute("data-empty", ["", "–", "0"].includes(cell.textContent.trim()) && !cell.querySelector("input"));
      }
    }
  }
}
