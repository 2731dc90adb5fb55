#!/usr/bin/env python3
"""chat_templates.py - what a model's Jinja chat template itself renders, for model/chat_formats.c.

usage: chat_templates.py collect FOLDER SOURCE...   put NAME.jinja of every source into FOLDER; a source is
           a *.jinja file, a folder of them, a GGUF file, or a C++ file with `.template_str= */ "..."`
       chat_templates.py learn FOLDER               what model/chat_formats.c would say of each file
       chat_templates.py table FOLDER PRESENT > NEW   PRESENT is model/chat_formats.c, NEW the next one
       chat_templates.py expected FOLDER FORMATS PRESENT > NEW   FORMATS is model/chat_formats.c; PRESENT is
           tests/model/chat_expected.json, NEW the next one
       chat_templates.py compare FOLDER PROGRAM     random conversations of every file that the program knows,
           rendered by it (tests/model/test_chat_template.c) and by Jinja

`collect` keeps other people's texts out of the repository: the folder is what $HILL_TEMPLATES names.
`learn` needs no knowledge of a template: it renders conversations of marks, cuts the texts between the
marks out of what came, and keeps them only when they render random conversations as the template does.
A template that the present table knows and the folder lacks keeps its row, and what is expected of it.
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


def said(roles, contents):
    return [{"role": r, "content": c} for r, c in zip(roles, contents)]


def conversation(system, turns):
    messages = [] if system is None else said(["system"], [system])
    return messages + said(["user", "assistant"] * len(turns), turns)


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
           "place": "none", "system_head": "", "system_end": "", "system_next": ""}
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
    if not row["thought"] or not verify(text, row):
        return None
    free = dict(row, system_next=attempt(lambda: learn_next(text)) or "")
    for thought in [row["thought"]] + ["round"] * (row["thought"] == "cut_lines"):
        free["thought"] = thought
        if free["system_next"] and attempt(lambda: verify(text, free)):
            return free
    return row


def learn_next(text):
    """What comes before a later system text; None where that one is not rendered."""
    marks = ["U1U", "A1A", "S2S", "U2U"]
    parts = cut(render(text, said(["user", "assistant", "system", "user"], marks), mark_date), marks)
    return parts and parts[2]


def strip(text, sides):
    text = text.lstrip() if sides[0] else text
    return text.rstrip() if sides[1] else text


TOOL = "<tool_response>\n%s\n</tool_response>"


def without_thought(row, answer, in_round):
    if "</think>" not in answer or row["thought"] == "kept":
        return answer
    thought = answer.split("</think>")[0].rstrip("\n").split("<think>")[-1].lstrip("\n")
    answer = answer.split("</think>")[-1]
    if row["thought"] == "round" and in_round and thought:
        return "<think>\n%s\n</think>\n\n%s" % (thought, answer.lstrip("\n"))
    return answer if row["thought"] == "cut" else answer.lstrip("\n")


def tagged(text):
    """Are tools' answers a user's text in tags, as the gateway has them?"""
    talk = said(["user", "assistant", "tool", "tool"], ["U1U", "A1A", "T1T", "T2T"])
    user = said(["user", "assistant", "user"], ["U1U", "A1A", TOOL % "T1T" + "\n" + TOOL % "T2T"])
    return bool(attempt(lambda: render(text, talk, mark_date) == render(text, user, mark_date)))


def by_row(row, messages):
    """What model/chat_template.c makes of a row."""
    messages = joined(row, messages)
    opens, before, parts = messages[0]["role"] == "system" and row["place"] == "first", None, []
    users = [i for i, m in enumerate(messages) if m["role"] == "user"
             and not (m["content"].startswith("<tool_response>") and m["content"].endswith("</tool_response>"))]
    late = messages[0] if messages[0]["role"] == "system" and not opens else None
    for i, message in enumerate(messages):
        role, content = message["role"], message["content"]
        if message is late:
            continue
        if before is None:
            parts.append(row["system_head" if opens else "head"])
        elif role == before == "tool":
            parts.append("\n")
        elif role in ("assistant", "system"):
            parts.append(row["answer" if role == "assistant" else "system_next"])
        else:
            parts.append(row["system_end" if before == "system" else "next"])
        if late and i == len(messages) - 1:
            parts += [strip(late["content"], row["strip_system"]), row["system_end"]]
        if role == "assistant":
            in_round = users and i > users[-1]
            parts.append(strip(without_thought(row, content, in_round), row["strip_answer"]))
        else:
            parts.append(TOOL % content if role == "tool" else strip(content, row["strip_" + role]))
        before = role
    return "".join(parts) + row["tail"]


def joined(row, messages):
    """A system text for a template without a place for one stands in front of the first user's."""
    if messages[0]["role"] != "system" or row["place"] != "none":
        return messages
    return said(["user"], [messages[0]["content"] + "\n\n" + messages[1]["content"]]) + messages[2:]


CONTENTS = ["Hello", "   two  words ", "\n\nlines\n", "", "\u00a0\u2003wide\u3000", "tail\t", "<|im_end|>",
            "{{ bos_token }}", "a </s> b", "\U0001f642", "x" * 300, "'q' \"d\" \\n", "0", "1. one\n2. two",
            "\x1c\x1funit\x1f", "\u200bzero\u200b", "\u0085next\u0085"]
SAID = [c for c in CONTENTS if c.strip()]
THOUGHTS = ["<think>\nhm\n</think>\n\nyes", "<think>\n\n</think>\n\nx", "x<think>\n\ny\n\n</think>\n\n\nz",
            "<think>no end", "y\n<think></think>z", "a</think>b</think>\n c", "</think>", "<think></think> \nx\n"]


def random_conversation(rng, systems):
    n = 2 * rng.randrange(5) + 1
    turns = [rng.choice(CONTENTS + (THOUGHTS if i % 2 else [])) for i in range(n)]
    for i in range(0, n, 2):  # a person says something
        turns[i] = turns[i] if turns[i].strip() else "?"
    system = rng.choice(SAID) if systems and rng.random() < 0.5 else None
    return conversation(system, turns)


def random_order(rng, tools):
    """For a row with system_next. tools: for a template that is tagged."""
    roles = rng.choice([["system"], ["user"], ["system", "user"]])
    roles = roles + rng.choices(["system", "user", "assistant"] + ["tool"] * tools, k=rng.randrange(6))
    roles += ["user"] if "user" not in roles or roles[-1] == "assistant" else []
    return said(roles, [rng.choice(CONTENTS + THOUGHTS if r == "assistant" else SAID + [TOOL % "x"] * tools)
                        for r in roles])


def literals(text):
    """Texts that the template may look for in a content."""
    found = [ast.literal_eval(value) for _, kind, value in jinja2.Environment().lex(text)
             if kind == "string" and "\n" not in value]
    return [t for t in found if t.strip() and not t.startswith(("<tool", "</tool"))]


ANY_ORDER = ["user", "user", "assistant", "assistant", "system", "user"]


def verify(text, row, rounds=150):
    rng = random.Random(SEED)
    own, tools = literals(text), tagged(text)
    for word in own:
        for content in (word, word + " x", "x " + word + " y"):
            talk = said(ANY_ORDER if row["system_next"] else ["user", "assistant", "user"],
                        [content] * len(ANY_ORDER))
            if by_row(row, talk) != render(text, talk, mark_date):
                return False
    for _ in range(rounds):
        talk = (random_order(rng, tools) if row["system_next"]
                else random_conversation(rng, row["place"] != "none"))
        try:
            wanted = render(text, talk, mark_date)
        except Exception:
            return False
        if by_row(row, talk) != wanted:
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


def learnt(folder):
    """{digest: row} of the families."""
    rows = {}
    for _, text in read_folder(folder):
        row = attempt(lambda: learn(text))
        if row and family(row) and len("".join(row[f] for f in FIELDS).encode()) <= TEXT_MAX:
            rows[digest(text)] = marked(row)
    return rows


def read_table(path):
    """[(name, row, [digest])] of a model/chat_formats.c."""
    with open(path, encoding="utf-8") as file:
        source = file.read()
    string, result = r'"(?:[^"\\]|\\.)*"', []
    hashes = re.findall(r"\{0x([0-9a-f]{16}), (\d+)\}", source)
    for i, text in enumerate(re.findall(r"^    \{(%s.*?)\},$" % string, source, re.M | re.S)):
        places, fields = iter(["name", "head", "answer", "next", "system_head"]), {}
        for name, value in re.findall(r"(?:\.(\w+) = )?((?:%s\s*)+|\w+)" % string, text):
            parts = [ast.literal_eval(part) for part in re.findall(string, value)]
            fields[name or next(places)] = "".join(parts) if parts else value
        row = {f: fields.get(f, "").replace("NULL", "") for f in FIELDS + ["system_next"]}
        row["place"] = fields.get("place", "CHAT_SYSTEM_FIRST")[len("CHAT_SYSTEM_"):].lower()
        row["tail"] = fields.get("tail", row["answer"])
        row["system_end"] = fields.get("system_end", "" if row["place"] == "none" else row["next"])
        row["thought"] = fields.get("thought", "CHAT_THOUGHT_KEPT")[len("CHAT_THOUGHT_"):].lower()
        for who in ("system", "user", "answer"):
            row["strip_" + who] = next(k for k, v in STRIPS.items() if v == fields.get("strip_" + who, "0"))
        result.append((fields["name"], row, [h for h, at in hashes if int(at) == i]))
    return result


def merged(folder, path):
    """read_table's list with what the folder says of its templates. A format keeps its name: with those of
    its templates that are in the folder, or with all when none is. What is left is a format at the end."""
    rows, present, groups, result = learnt(folder), read_table(path), {}, []
    for name, row, hashes in present:
        for h in hashes:
            groups.setdefault(json.dumps(rows.get(h, row), sort_keys=True), []).append(h)
    for h, row in rows.items():
        group = groups.setdefault(json.dumps(row, sort_keys=True), [])
        group += [] if h in group else [h]
    for name, row, hashes in present:
        key = json.dumps(next((rows[h] for h in hashes if h in rows), row), sort_keys=True)
        if key in groups:
            result.append((name, json.loads(key), groups.pop(key)))
    for key in groups:
        row = json.loads(key)
        numbers = [int(name.rsplit("-", 1)[1]) for name, _, _ in result
                   if name.rsplit("-", 1)[0] == family(row)]
        result.append(("%s-%d" % (family(row), max(numbers, default=0) + 1), row, groups[key]))
    return result


def c_text(text):
    out = ""
    for c in text.replace(BOS, "\1").replace(EOS, "\2"):
        out += {"\n": "\\n", "\t": "\\t", '"': '\\"', "\\": "\\\\"}.get(
            c, "\\%03o" % ord(c) if c < " " else c)
    return '"%s"' % out.replace("??", '?""?')


STRIPS = {(False, False): "0", (True, True): "CHAT_STRIP_BOTH", (True, False): "CHAT_STRIP_LEFT",
          (False, True): "CHAT_STRIP_RIGHT"}


def table(folder, path):
    formats = merged(folder, path)
    print(TABLE_HEAD)
    for name, row, _ in formats:
        fields = [c_text(name)]
        for field in ("head", "answer", "next", "system_head"):
            fields.append(c_text(row[field]) if row[field] else "NULL")
        for field, other in (("tail", "answer"), ("system_end", "next")):
            if row[field] != row[other] and (field != "system_end" or row["place"] != "none"):
                fields.append(".%s = %s" % (field, c_text(row[field])))
        if row["system_next"]:
            fields.append(".system_next = " + c_text(row["system_next"]))
        if row["place"] != "first":
            fields.append(".place = CHAT_SYSTEM_%s" % row["place"].upper())
        for who in ("system", "user", "answer"):
            if any(row["strip_" + who]):
                fields.append(".strip_%s = %s" % (who, STRIPS[tuple(row["strip_" + who])]))
        if row["thought"] != "kept":
            fields.append(".thought = CHAT_THOUGHT_%s" % row["thought"].upper())
        print("    {%s}," % ", ".join(fields))
    print("};\nconst unsigned chat_format_count = sizeof chat_formats / sizeof chat_formats[0];\n")
    print("const struct chat_known chat_known[] = {")
    hashes = {h: i for i, (_, _, known) in enumerate(formats) for h in known}
    for h in sorted(hashes):
        print("{0x%s, %d}," % (h, hashes[h]))
    print("};\nconst unsigned chat_known_count = sizeof chat_known / sizeof chat_known[0];")


TABLE_HEAD = """/*
 * model/chat_formats.c - chat formats and the templates known to render them (chat_formats.h).
 *
 * Written by tests/oracle/chat_templates.py table: every row renders random conversations, and the
 * words that its templates look for, as Jinja renders each of the templates whose hash stands
 * below.
 */
#include "model/chat_formats.h"

const struct chat_format chat_formats[] = {"""


# ---- expected renderings ------------------------------------------------------------------------

TALKS = [conversation("Be brief. ", ["Hello", "a</think>\n\nHi there ", " Who <s>are</s> you?\n", "", "Bye"]),
         conversation(None, ["  one\u00a0"]),
         conversation(None, ["Hi", "\tYes\n", "And?"]),
         said(["system", "assistant", "assistant", "user", "user", "system", "user", "assistant", "system"],
              ["Be brief. ", "Hi", " I am here.", "One ", "Two", "Be kind. ", "Three", "So?", "Go on."])]
ORDERLY = 3  # of TALKS: in turn


def expected(folder, formats, path):
    """By the first template of each format in the folder, with bos and eos as in Llama 2. Where none is in
    it, Jinja has rendered these texts before, for a template of the same row."""
    texts, result = {digest(text): text for _, text in read_folder(folder)}, []
    with open(path, encoding="utf-8") as file:
        before = {text for row in json.load(file)["formats"] for text in row["texts"]}

    def by_jinja(row, hashes, talk):
        if talk in TALKS[ORDERLY:] and not row["system_next"]:
            return None  # refused
        known = next((texts[h] for h in hashes if h in texts), None)
        if known:
            return render(known, joined(row, talk), lambda form: "DATE" + form, "<s>", "</s>")
        text = by_row(row, talk).replace("\1", "<s>").replace("\2", "</s>")
        for form, mark in DATES.items():
            text = text.replace(mark, "DATE" + form)
        if text not in before:
            raise LookupError(text)
        return text
    for name, row, hashes in read_table(formats):
        result.append({"format": name, "hash": next((h for h in hashes if h in texts), hashes[0]),
                       "texts": [by_jinja(row, hashes, talk) for talk in TALKS]})
    print(json.dumps({"talks": TALKS, "formats": result}, ensure_ascii=False, indent=0))


def compare(folder, program, rounds=20):
    rng = random.Random(int(os.environ.get("HILL_SEED", SEED)))
    found = unknown = differ = any_order = 0
    for name, text in read_folder(folder):
        systems = "S0S" in (attempt(lambda: render(text, conversation("S0S", ["U1U"]), test_day)) or "")
        talks = [random_conversation(rng, systems) for _ in range(rounds)]
        talks += [random_order(rng, tagged(text)) for _ in range(rounds)] if systems else []
        request = {"template": text, "bos": "<s>", "eos": "</s>", "talks": talks}
        got = json.loads(subprocess.run([program, "render"], input=json.dumps(request).encode(),
                                        stdout=subprocess.PIPE, check=True).stdout)
        if got is None:
            unknown += 1
            continue
        found += 1
        any_order += systems and None not in got
        for i, (talk, mine) in enumerate(zip(talks, got)):
            if mine is None and i >= rounds:
                continue  # refused
            wanted = render(text, talk, test_day, "<s>", "</s>")
            if mine != wanted:
                differ += 1
                print("%s: %r\n  %r\nwanted\n  %r" % (name, talk, mine, wanted))
    print("%d of %d templates known, %d of them in any order, %d renderings differ"
          % (found, found + unknown, any_order, differ))
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
        table(folder, sys.argv[3])
    elif command == "compare":
        sys.exit(compare(folder, sys.argv[3]))
    elif command == "expected":
        expected(folder, *sys.argv[3:])
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
