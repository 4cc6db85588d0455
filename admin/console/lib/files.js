// What a person chose or dropped, as contents to upload: {name, file}, or {name, entries} for a folder, whose entries are
// {path, file} and {path, directory: true} with paths that begin with the folder's name.

const isHidden = (path) => path.split("/").some((name) => name.startsWith("."));

// Contents of the files of an <input type="file">, with or without webkitdirectory.
export function chosen(files) {
  const folders = new Map();
  const contents = [];
  for (const file of files) {
    if (!file.webkitRelativePath) {
      contents.push({ name: file.name, file });
      continue;
    }
    const name = file.webkitRelativePath.split("/")[0];
    if (!folders.has(name)) {
      folders.set(name, { name, entries: [] });
      contents.push(folders.get(name));
    }
    folders.get(name).entries.push({ path: file.webkitRelativePath, file });
  }
  return contents;
}

const fileOf = (entry) => new Promise((resolve, reject) => {
  entry.file(resolve, (error) => reject(new Error(`The browser cannot read ${entry.fullPath}: ${error.message}`)));
});

// readEntries returns a part of the entries each time, and at last none.
async function childrenOf(entry) {
  const reader = entry.createReader();
  const all = [];
  for (;;) {
    const some = await new Promise((resolve, reject) => {
      reader.readEntries(resolve, (error) => reject(new Error(`The browser cannot read ${entry.fullPath}: ${error.message}`)));
    });
    if (some.length === 0) return all;
    all.push(...some);
  }
}

async function walk(entry, path, found, { signal, onFile }) {
  signal.throwIfAborted();
  if (entry.isFile) {
    found.push({ path, file: await fileOf(entry) });
    onFile();
    return;
  }
  const children = await childrenOf(entry);
  // Other folders exist by the paths of their files.
  if (children.length === 0) found.push({ path, directory: true });
  for (const child of children) await walk(child, `${path}/${child.name}`, found, { signal, onFile });
}

// Contents of a drop. Must be called while the event is handled, because the browser empties it afterwards.
// `onFile` is called for each file that is found.
export async function dropped(transfer, { signal, onFile = () => {} }) {
  const entries = [...transfer.items].filter(({ kind }) => kind === "file").map((item) => item.webkitGetAsEntry()).filter(Boolean);
  const contents = [];
  for (const entry of entries) {
    if (entry.isFile) {
      contents.push({ name: entry.name, file: await fileOf(entry) });
      onFile();
    } else {
      const found = [];
      await walk(entry, entry.name, found, { signal, onFile });
      contents.push({ name: entry.name, entries: found });
    }
  }
  return contents;
}

// The entries of a folder without hidden ones, as `causeway add` takes them. The folder itself may be hidden.
export const withoutHidden = ({ name, entries }) => ({ name, entries: entries.filter(({ path }) => !isHidden(path.slice(name.length + 1))) });
