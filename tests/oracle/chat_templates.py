#!/usr/bin/env python3
"""chat_templates.py - what a model's Jinja chat template itself renders, for model/chat_formats.c.

usage: chat_templates.py collect FOLDER SOURCE...   put NAME.jinja of every source into FOLDER; a source is
           a *.jinja file, a folder of them, a GGUF file, or a C++ file with `.template_str= */ "..."`
       chat_templates.py learn FOLDER               what model/chat_formats.c would say of each file
       chat_templates.py table FOLDER > model/chat_formats.c
       chat_templates.py expected FOLDER > tests/model/chat_expected.json
       chat_templates.py compare FOLDER PROGRAM     random conversations of every file that the program knows,
           rendered by it (tests/model/test_chat_template.c) and by Jinja

`collect` keeps other people's texts out of the repository: the folder is what $HILL_TEMPLATES names.
`learn` needs no knowledge of a template: it renders conversations of marks, cuts the texts between the
marks out of what came, and keeps them only when they render random conversations as the template does.
Needs jinja2 and xxhash (and gguf for GGUF files). The environment is the one that transformers uses.
"""
import ast
import datetime
import functools
import json
import os
import random
import re
import subprocess
import sys

import jinja2
import jinja2.ext
import jinja2.sandbox

BOS, EOS = "<BOS>", "<EOS>"
DATES = {"%d %b %Y": "\3", "%B %d, %Y": "\4", "%Y-%m-%d": "\5"}
SEED = 12


class Generation(jinja2.ext.Extension):
    """{% generation %} ... {% endgeneration %} marks the assistant's text for training: its body alone."""
    tags = {"generation"}

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def environment(now):
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = now
    return env


@functools.lru_cache(4)
def compiled(text, now):
    return environment(now).from_string(text)


def render(text, messages, now, bos=BOS, eos=EOS):
    return compiled(text, now).render(messages=messages, bos_token=bos, eos_token=eos,
                                      add_generation_prompt=True, tools=None, documents=None)


def mark_date(form):
    return DATES[form]  # another one: KeyError, not learnt


def conversation(system, turns):
    messages = [] if system is None else [{"role": "system", "content": system}]
    return messages + [{"role": "assistant" if i % 2 else "user", "content": t}
                       for i, t in enumerate(turns)]


# ---- collect ------------------------------------------------------------------------------------

def c_strings(text):
    """(name, template) of each test case of a C++ file."""
    literal = r'"(?:[^"\\]|\\.)*"'
    cases = re.compile(r'/\* \.name= \*/\s*(%s).*?/\* \.template_str= \*/\s*(?:U8C\()?((?:%s\s*)+)'
                       % (literal, literal), re.S)
    for match in cases.finditer(text):
        parts = re.findall(literal, match.group(2), re.S)
        yield ast.literal_eval(match.group(1)), "".join(ast.literal_eval(p) for p in parts)


def gguf_template(path):
    import gguf
    field = gguf.GGUFReader(path).get_field("tokenizer.chat_template")
    return bytes(field.parts[-1]).decode() if field else None


def sources(path):
    base = os.path.basename(path)
    if os.path.isdir(path):
        for name in sorted(os.listdir(path)):
            if name.endswith(".jinja"):
                yield from sources(os.path.join(path, name))
    elif path.endswith(".gguf"):
        text = gguf_template(path)
        if text is not None:
            yield base[:-5], text
    elif path.endswith(".jinja"):
        with open(path, encoding="utf-8", newline="") as file:
            yield base[:-6], file.read()
    else:
        with open(path, encoding="utf-8") as file:
            yield from c_strings(file.read())


def collect(folder, paths):
    os.makedirs(folder, exist_ok=True)
    for path in paths:
        for name, text in sources(path):
            name = re.sub(r"[^A-Za-z0-9._+-]+", "-", name).strip("-")
            with open(os.path.join(folder, name + ".jinja"), "w", encoding="utf-8", newline="") as file:
                file.write(text)


# ---- learn --------------------------------------------------------------------------------------

def cut(text, marks):
    """The texts before, between and after the marks, each there once and in order; else None."""
    parts = []
    for mark in marks:
        if text.count(mark) != 1:
            return None
        before, text = text.split(mark)
        parts.append(before)
    return parts + [text]


def attempt(function):
    try:
        return function()
    except Exception:
        return None


def learn_sides(render_marks, mark):
    """Which sides of a content the template strips: (left, right)."""
    text = render_marks(" \n\t" + mark + "\t\n ")
    return (" \n\t" + mark not in text, mark + "\t\n " not in text)


def learn(text):
    """The row of model/chat_formats.c as a dict, or None where the template is of another kind."""
    users, answers = ["U1U", "U2U", "U3U"], ["A1A", "A2A"]
    turns = [users[0], answers[0], users[1], answers[1], users[2]]
    plain = attempt(lambda: cut(render(text, conversation(None, turns), mark_date), turns))
    single = attempt(lambda: cut(render(text, conversation(None, turns[:1]), mark_date), turns[:1]))
    if not plain or not single or plain[1] != plain[3] or plain[2] != plain[4]:
        return None
    if single != [plain[0], plain[-1]]:
        return None
    row = {"head": plain[0], "answer": plain[1], "next": plain[2], "tail": plain[-1],
           "place": "none", "system_head": "", "system_end": ""}
    system = "S0S"
    given = attempt(lambda: render(text, conversation(system, turns), mark_date))
    if given is not None and given.count(system) == 1:
        first = cut(given, [system] + turns)
        last = cut(given, turns[:-1] + [system] + turns[-1:])
        if first and first[2:] == plain[1:]:
            row.update(place="first", system_head=first[0], system_end=first[1])
        elif last and last[:4] == plain[:4] and last[-1] == plain[-1]:
            row.update(place="last", system_head=last[4], system_end=last[5])
            if last[4] != plain[4]:
                return None
        else:
            return None

    def with_at(index):
        def go(content):
            changed = list(turns)
            if index < 0:
                return render(text, conversation(content, turns), mark_date)
            changed[index] = content
            return render(text, conversation(None, changed), mark_date)
        return go
    row["strip_user"] = learn_sides(with_at(0), "U1U")
    row["strip_answer"] = learn_sides(with_at(1), "A1A")
    row["strip_system"] = (learn_sides(with_at(-1), system) if row["place"] != "none"
                           else (False, False))
    thought = with_at(1)("R1R</think>\n\nA1A")
    row["thought"] = ("kept" if "R1R</think>\n\nA1A" in thought else
                      "cut" if thought == with_at(1)("\n\nA1A") else
                      "cut_lines" if thought == with_at(1)("A1A") else None)
    return row if row["thought"] and verify(text, row) else None


def strip(text, sides):
    text = text.lstrip() if sides[0] else text
    return text.rstrip() if sides[1] else text


def by_row(row, system, turns):
    """What model/chat_template.c makes of a row."""
    parts = []
    if system is not None and row["place"] == "none":
        turns = [system + "\n\n" + turns[0]] + turns[1:]
        system = None
    if system is not None and row["place"] == "first":
        parts += [row["system_head"], strip(system, row["strip_system"]), row["system_end"]]
    else:
        parts.append(row["head"])
    for i, turn in enumerate(turns):
        last = i == len(turns) - 1
        if i % 2:
            if "</think>" in turn and row["thought"] != "kept":
                turn = turn.split("</think>")[-1]
                if row["thought"] == "cut_lines":
                    turn = turn.lstrip("\n")
            parts += [row["answer"], strip(turn, row["strip_answer"]), row["next"]]
        else:
            if last and system is not None and row["place"] == "last":
                parts += [strip(system, row["strip_system"]), row["system_end"]]
            parts.append(strip(turn, row["strip_user"]))
    return "".join(parts) + row["tail"]


CONTENTS = ["Hello", "   two  words ", "\n\nlines\n", "", "\u00a0\u2003wide\u3000", "tail\t", "<|im_end|>",
            "{{ bos_token }}", "a </s> b", "\U0001f642", "x" * 300, "'q' \"d\" \\n", "0", "1. one\n2. two",
            "\x1c\x1funit\x1f", "\u200bzero\u200b", "\u0085next\u0085"]
THOUGHTS = ["<think>\nhm\n</think>\n\nyes", "a</think>b</think>\n c", "</think>", "<think></think> \nx\n"]


def random_conversation(rng, systems):
    n = 2 * rng.randrange(5) + 1
    turns = [rng.choice(CONTENTS + (THOUGHTS if i % 2 else [])) for i in range(n)]
    for i in range(0, n, 2):  # a person says something
        turns[i] = turns[i] if turns[i].strip() else "?"
    system = rng.choice([c for c in CONTENTS if c.strip()]) if systems and rng.random() < 0.5 else None
    return system, turns


def literals(text):
    """Texts that the template may look for in a content."""
    found = [ast.literal_eval(value) for _, kind, value in jinja2.Environment().lex(text)
             if kind == "string" and "\n" not in value]
    return [t for t in found if t.strip() and not t.startswith(("<tool", "</tool"))]


def verify(text, row, rounds=150):
    rng = random.Random(SEED)
    own = literals(text)
    for word in own:
        for content in (word, word + " x", "x " + word + " y"):
            turns = [content, content, content]
            if by_row(row, None, turns) != render(text, conversation(None, turns), mark_date):
                return False
    for _ in range(rounds):
        system, turns = random_conversation(rng, row["place"] != "none")
        try:
            wanted = render(text, conversation(system, turns), mark_date)
        except Exception:
            return False
        if by_row(row, system, turns) != wanted:
            row["failed"] = (system, turns, by_row(row, system, turns), wanted)
            return False
    return True


# ---- the known texts ----------------------------------------------------------------------------

def normal(text):
    """As model/chat_template.c hashes it: Jinja reads CRLF as LF and drops one newline at the end."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text[:-1] if text.endswith("\n") else text


def digest(text):
    import xxhash
    return xxhash.xxh64_hexdigest(normal(text).encode())


def read_folder(folder):
    for name in sorted(os.listdir(folder)):
        if name.endswith(".jinja"):
            with open(os.path.join(folder, name), encoding="utf-8", newline="") as file:
                yield name[:-6], file.read()


def marked(row):
    return {k: v.replace(BOS, "\1").replace(EOS, "\2") if isinstance(v, str) else v
            for k, v in row.items()}


# ---- the table ----------------------------------------------------------------------------------

# A family's mark, in what a conversation begins with; the first that fits gives the name.
FAMILIES = [("phi4", "<|im_sep|>"), ("chatml", "<|im_start|>"), ("llama3", "<|start_header_id|>"),
            ("gemma", "<start_of_turn>"), ("mistral-v7", "[SYSTEM_PROMPT]"), ("llama2", "<<SYS>>"),
            ("mistral", "[INST]"), ("deepseek", "<｜User｜>"), ("deepseek-coder", "<|EOT|>"),
            ("phi3", "<|end|>"), ("granite", "<|start_of_role|>"),
            ("zephyr", "<|user|>\n"), ("deepseek2", "User: ")]
TEXT_MAX = 560  # bytes of a row's texts; what has a longer system prompt is left to the helper
FIELDS = ["head", "answer", "next", "tail", "system_head", "system_end"]


def family(row):
    text = row["system_head"] + row["head"] + row["next"]
    return next((name for name, mark in FAMILIES if mark in text), None)


def known(folder):
    """[(name, row, [(digest, source name, text)])] of the families, in a stable order."""
    rows, order, result = {}, {}, []
    for name, text in read_folder(folder):
        row = attempt(lambda: learn(text))
        if row and family(row) and len("".join(row[f] for f in FIELDS).encode()) <= TEXT_MAX:
            rows.setdefault(json.dumps(row), []).append((digest(text), name, text))
    for key in sorted(rows, key=lambda k: (family(json.loads(k)), -len(rows[k]), k)):
        row = json.loads(key)
        order[family(row)] = order.get(family(row), 0) + 1
        result.append(("%s-%d" % (family(row), order[family(row)]), row, rows[key]))
    return result


def c_text(text):
    out = ""
    for c in text.replace(BOS, "\1").replace(EOS, "\2"):
        out += {"\n": "\\n", "\t": "\\t", '"': '\\"', "\\": "\\\\"}.get(
            c, "\\%03o" % ord(c) if c < " " else c)
    return '"%s"' % out.replace("??", '?""?')


def c_sides(sides):
    return {(True, True): "CHAT_STRIP_BOTH", (True, False): "CHAT_STRIP_LEFT",
            (False, True): "CHAT_STRIP_RIGHT"}.get(tuple(map(bool, sides)), "0")


def table(folder):
    formats = known(folder)
    print(TABLE_HEAD)
    for name, row, _ in formats:
        fields = [c_text(name)]
        for field in ("head", "answer", "next", "system_head"):
            fields.append(c_text(row[field]) if row[field] else "NULL")
        for field, other in (("tail", "answer"), ("system_end", "next")):
            if row[field] != row[other] and (field != "system_end" or row["place"] != "none"):
                fields.append(".%s = %s" % (field, c_text(row[field])))
        if row["place"] != "first":
            fields.append(".place = CHAT_SYSTEM_%s" % row["place"].upper())
        for who in ("system", "user", "answer"):
            if any(row["strip_" + who]):
                fields.append(".strip_%s = %s" % (who, c_sides(row["strip_" + who])))
        if row["thought"] != "kept":
            fields.append(".thought = CHAT_THOUGHT_%s" % row["thought"].upper())
        print("    {%s}," % ", ".join(fields))
    print("};\nconst unsigned chat_format_count = sizeof chat_formats / sizeof chat_formats[0];\n")
    print("const struct chat_known chat_known[] = {")
    hashes = {h: i for i, (_, _, files) in enumerate(formats) for h, _, _ in files}
    for h in sorted(hashes):
        print("{0x%s, %d}," % (h, hashes[h]))
    print("};\nconst unsigned chat_known_count = sizeof chat_known / sizeof chat_known[0];")


TABLE_HEAD = """/*
 * model/chat_formats.c - chat formats and the templates known to render them (chat_formats.h).
 *
 * Written by tests/oracle/chat_templates.py table: every row renders random conversations, and the
 * words that its templates look for, as Jinja renders each of the templates whose hash stands below.
 */
#include "model/chat_formats.h"

const struct chat_format chat_formats[] = {"""


# ---- expected renderings ------------------------------------------------------------------------

TALKS = [("Be brief. ", ["Hello", "a</think>\n\nHi there ", " Who <s>are</s> you?\n", "", "Bye"]),
         (None, ["  one\u00a0"]),
         (None, ["Hi", "\tYes\n", "And?"])]


def expected(folder):
    """By the first template of each format, with bos and eos as in Llama 2."""
    result = []
    for name, row, files in known(folder):
        texts = []
        for system, turns in TALKS:
            talk = conversation(system, turns)
            if system is not None and row["place"] == "none":
                talk = conversation(None, [system + "\n\n" + turns[0]] + turns[1:])
            texts.append(render(files[0][2], talk, lambda form: "DATE" + form, "<s>", "</s>"))
        result.append({"format": name, "hash": files[0][0], "texts": texts})
    talks = [{"system": s, "turns": t} for s, t in TALKS]
    print(json.dumps({"talks": talks, "formats": result}, ensure_ascii=False, indent=0))


def compare(folder, program, rounds=20):
    rng = random.Random(int(os.environ.get("HILL_SEED", SEED)))
    found = unknown = differ = 0
    for name, text in read_folder(folder):
        mark = attempt(lambda: render(text, conversation("S0S", ["U1U"]), test_day))
        talks = [dict(zip(("system", "turns"), random_conversation(rng, mark and "S0S" in mark)))
                 for _ in range(rounds)]
        request = {"template": text, "bos": "<s>", "eos": "</s>", "talks": talks}
        got = json.loads(subprocess.run([program, "render"], input=json.dumps(request).encode(),
                                        stdout=subprocess.PIPE, check=True).stdout)
        if got is None:
            unknown += 1
            continue
        found += 1
        for talk, mine in zip(talks, got):
            wanted = render(text, conversation(talk["system"], talk["turns"]), test_day,
                            "<s>", "</s>")
            if mine != wanted:
                differ += 1
                print("%s: %r\n  %r\nwanted\n  %r" % (name, talk, mine, wanted))
    print("%d of %d templates known, %d renderings differ" % (found, found + unknown, differ))
    return 1 if differ or not found else 0


def test_day(form):
    return datetime.datetime.fromtimestamp(1700000000).strftime(form)


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    command, folder = sys.argv[1:3]
    if command == "collect":
        collect(folder, sys.argv[3:])
    elif command == "learn":
        for name, text in read_folder(folder):
            row = attempt(lambda: learn(text))
            print(digest(text), name, json.dumps(marked(row), ensure_ascii=False) if row else "-")
    elif command == "table":
        table(folder)
    elif command == "compare":
        sys.exit(compare(folder, sys.argv[3]))
    elif command == "expected":
        expected(folder)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
