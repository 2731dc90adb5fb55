#!/usr/bin/env python3
"""gather.py - collect the training text from Debian packages.

What:   downloads the packages named below (apt-get download, nothing is installed), unpacks their documents, makes
        plain text of them, and writes OUT/train.txt, OUT/heldout.txt and OUT/sources.tsv (package, version, licence,
        files, bytes).
Why:    a reference model has to be trained on text that anyone can fetch again and that may be shared.
Who:    run once by the person who trains; train.py, ngram.py and evaluate.py read the results.
Splits: by file, from a hash of the path: about one file in 24 is held out. The split does not depend on the order of
        the files or on which packages could be fetched.
Fails:  a package that cannot be fetched is an error: a silently smaller corpus would be another model. Exit 1.
"""
import argparse
import gzip
import hashlib
import html.parser
import pathlib
import re
import subprocess
import sys
import tempfile

# package, licence of the text (debian/copyright), glob of the documents inside, most bytes of text to take
SOURCES = [
    ("python3.11-doc", "PSF-2.0", "usr/share/doc/python3.11/html/_sources/**/*.txt", 7_000_000),
    ("perl-doc", "Artistic-1.0-Perl or GPL-1+", "usr/share/perl/*/pod/perl*.pod", 4_000_000),
    ("debian-policy", "GPL-2+", "usr/share/doc/debian-policy/policy.html/_sources/*.txt", 1_000_000),
    ("developers-reference", "GPL-2+", "usr/share/developers-reference/_sources/*.txt", 1_000_000),
    ("debian-reference-en", "GPL-2+", "usr/share/debian-reference/*.en.html", 2_000_000),
    ("debian-handbook", "CC-BY-SA-3.0 or GPL-2+", "usr/share/doc/debian-handbook/html/en-US/*.html", 2_000_000),
    ("debian-faq", "GPL-2+", "usr/share/doc/debian/FAQ/*.en.html", 1_000_000),
    ("miscfiles", "public domain (these two files)", "usr/share/state/us-*.gz", 1_000_000),
]
BLOCK_TAGS = {"p", "div", "li", "tr", "br", "h1", "h2", "h3", "h4", "h5", "pre", "dt", "dd", "table", "title"}
SILENT_TAGS = {"script", "style", "head", "nav"}


class Plain(html.parser.HTMLParser):
    """HTML to text: block tags become line ends; scripts, styles and heads are dropped."""

    def __init__(self):
        super().__init__()
        self.parts, self.silent = [], 0

    def handle_starttag(self, tag, attrs):
        self.silent += tag in SILENT_TAGS
        if tag in BLOCK_TAGS:
            self.parts.append("\n")

    def handle_endtag(self, tag):
        self.silent -= tag in SILENT_TAGS and self.silent > 0

    def handle_data(self, data):
        if not self.silent:
            self.parts.append(data)


def plain_text(path):
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    text = raw.decode("utf-8", "replace")
    if path.suffix == ".html":
        parser = Plain()
        parser.feed(text)
        text = "".join(parser.parts)
    if path.suffix == ".pod":
        text = re.sub(r"[BCFILSX]<([^<>]*)>", r"\1", text)
    text = text.replace("\u00a0", " ").replace("\t", "    ").replace("\x00", "")
    text = "\n".join(line.rstrip() for line in text.splitlines())
    text = re.sub(r"[ ]{9,}", "        ", text)
    text = re.sub(r"([-=~^*_#.+])\1{7,}", lambda m: m.group(1) * 8, text)  # rules under headings teach nothing
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def held_out(package, name):
    return hashlib.sha256(f"{package}/{name}".encode()).digest()[0] < 11


def gather(package, pattern, limit, folder):
    subprocess.run(["apt-get", "-q", "download", package], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    deb = next(folder.glob(package + "_*.deb"))
    version = subprocess.run(["dpkg-deb", "-f", deb, "Version"], check=True, capture_output=True, text=True).stdout
    root = folder / package
    subprocess.run(["dpkg-deb", "-x", deb, root], check=True)
    texts, total = [], 0
    names = sorted(str(p.relative_to(root)) for p in root.glob(pattern) if p.is_file())
    names.sort(key=lambda n: hashlib.sha256(n.encode()).digest())  # the limit must not cut off the alphabet's end
    for name in names:
        text = plain_text(root / name)
        if len(text) < 400 or total + len(text) > limit:
            continue
        total += len(text)
        texts.append((held_out(package, name), text))
    if not texts:
        raise SystemExit(f"gather: package {package}: no document matches {pattern}")
    return version.strip(), texts


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=pathlib.Path, help="folder for train.txt, heldout.txt, sources.tsv")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    kept = {False: [], True: []}
    rows = ["package\tversion\tlicence\tfiles\tbytes train\tbytes held out"]
    for package, licence, pattern, limit in SOURCES:
        with tempfile.TemporaryDirectory() as folder:
            version, texts = gather(package, pattern, limit, pathlib.Path(folder))
        size = {side: sum(len(t.encode()) for h, t in texts if h == side) for side in kept}
        for side, text in texts:
            kept[side].append(text)
        rows.append(f"{package}\t{version}\t{licence}\t{len(texts)}\t{size[False]}\t{size[True]}")
    # \x1e (record separator) marks where one document ends: text never holds it, the trainer cuts there.
    (args.out / "train.txt").write_text("\x1e".join(kept[False]), encoding="utf-8")
    (args.out / "heldout.txt").write_text("\x1e".join(kept[True]), encoding="utf-8")
    (args.out / "sources.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    print("\n".join(rows))


if __name__ == "__main__":
    sys.exit(main())
