#!/usr/bin/python3
"""chat-template-helper.py - render a chat template with Jinja; run by chat/chat_helper.c.

stdin: {"template", "bos", "eos", "now" (seconds), "messages": [{"role", "content"}]}, one object; and
"enable_thinking" where the template is to have that variable. An assistant's message may have "reasoning_content",
which is left out where the template does not take it.
stdout: {"pieces": [{"text", "kind": "template" | "words" | "answer"}], "answer_end"} or {"error": one line}.

A template is a program from a file that somebody made: it runs in Jinja's immutable sandbox, and this
process, once it has read its input, may only read and write what is open and ask for memory (seccomp; the
limits of time and memory are hillctl's). A person's words never are part of the template's text: the
template sees random marks in their place, which are put back after it. What it does with marks must be what
it does with the words, or nothing is rendered.

--check instead: try, under the same filter, what must not be possible, and say what is refused.
"""
import ctypes
import json
import os
import platform
import re
import secrets
import socket
import struct
import sys
import time

APT = ("the model's chat template is none that is built in and needs Jinja; on Debian: "
       "apt install python3-jinja2")
WORDS, ANSWER, TEMPLATE = "words", "answer", "template"
# marks of reasoning, and SmolLM3's switches
LOOKED_FOR = {"assistant": "(</?think>)", "system": r"(?<!\S)(/no_think|/think|/system_override)(?!\S)"}

# ---- giving things up ---------------------------------------------------------------------------

# Linux system calls that stay: reading, writing, closing, memory, signals, locks, time, the end.
CALLS = {
    "x86_64": (0xc000003e, (0, 1, 3, 5, 8, 9, 10, 11, 12, 13, 14, 15, 25, 28, 39, 60, 96, 131, 186,
                            202, 228, 230, 231, 262, 318)),
    "aarch64": (0xc00000b7, (57, 62, 63, 64, 80, 93, 94, 98, 113, 115, 132, 134, 135, 139, 169, 172,
                             178, 214, 215, 216, 222, 226, 233, 278)),
}
FSTATAT = 262  # of an open file alone (x86_64's fstat in newer C libraries): its path must be ""


def give_up():
    """Filter system calls: True when the kernel took the filter."""
    machine = platform.machine()
    if machine not in CALLS:
        return False
    arch, calls = CALLS[machine]
    calls = [c for c in calls if c != FSTATAT]
    load, equal, result = 0x20, 0x15, 0x06
    program = [(load, 0, 0, 4), (equal, 1, 0, arch), (result, 0, 0, 0x00050001), (load, 0, 0, 0)]
    for i, call in enumerate(calls):
        program.append((equal, len(calls) - i, 0, call))
    program += [(result, 0, 0, 0x00050001), (result, 0, 0, 0x7fff0000)]  # EPERM; allowed
    code = b"".join(struct.pack("HBBI", *step) for step in program)
    buffer = ctypes.create_string_buffer(code)
    header = struct.pack("HxxxxxxQ", len(program), ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(38, 1, 0, 0, 0)  # no new privileges
    return libc.prctl(22, 2, ctypes.c_char_p(header)) == 0


def check():
    """What the filter refuses, by trying it."""
    filtered = give_up()
    attempts = {
        "open": lambda: os.open("/etc/passwd", os.O_RDONLY),
        "socket": socket.socket,
        "fork": os.fork,
        "exec": lambda: os.execv("/bin/true", ["true"]),
        "unlink": lambda: os.unlink("/nonexistent"),
        "kill": lambda: os.kill(1, 0),
    }
    refused = []
    for name, attempt in attempts.items():
        try:
            attempt()
        except PermissionError:
            refused.append(name)
        except OSError:
            pass
    print("filter %s; refused: %s" % ("on" if filtered else "off", " ".join(refused)))
    return 0 if filtered and len(refused) == len(attempts) else 1


# ---- Jinja --------------------------------------------------------------------------------------

def make_environment(jinja2, now):
    class Generation(jinja2.ext.Extension):
        """{% generation %} marks the answers for training: its body is rendered."""
        tags = {"generation"}

        def parse(self, parser):
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(str(message))

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: time.strftime(form, now)
    return environment


# ---- words and marks ----------------------------------------------------------------------------

class Words:
    """A stretch of somebody's text, and the mark that stands for it."""

    def __init__(self, text, kind):
        self.text, self.kind = text, kind
        self.mark = "w" + secrets.token_hex(16) + "w"


def cut(text, role):
    """A text as what templates may strip or look for, which stays, and Words.

    That is white space at both ends, and LOOKED_FOR."""
    kind = ANSWER if role == "assistant" else WORDS
    parts = re.split(LOOKED_FOR[role], text) if role in LOOKED_FOR else [text]
    result = []
    for i, part in enumerate(parts):
        core = part.strip()
        if i % 2 or not core:
            result.append(part)
            continue
        at = part.index(core)
        result += [part[:at], Words(core, kind), part[at + len(core):]]
    return [r for r in result if r != ""]


def texts(messages, marked):
    """Messages are (role, parts of the text, parts of the reasoning); as the template gets them."""
    def join(parts):
        return "".join((p.mark if marked else p.text) if isinstance(p, Words) else p for p in parts)
    return [{"role": role, "content": join(parts),
             **({"reasoning_content": join(thought)} if thought else {})}
            for role, parts, thought in messages]


def join_system(messages):
    """For a template without a place for a system text: in front of the first user's."""
    (_, system, _), (role, first, _), *rest = messages
    return [(role, system + ["\n\n"] + first, [])] + rest


def has_place(jinja2, template, messages, context):
    """Does the template say a system text?"""
    system = Words("", WORDS)
    try:
        return system.mark in template.render(
            messages=texts([("system", [system], [])] + messages[1:], True), **context)
    except jinja2.exceptions.TemplateError:
        return False


class Refused(Exception):
    pass


def put_back(rendered, messages):
    """The rendering of marks as pieces."""
    words = {p.mark: p for _, parts, thought in messages for p in parts + thought
             if isinstance(p, Words)}
    seen, pieces = set(), []
    for part in re.split("(w[0-9a-f]{32}w)", rendered):
        found = words.get(part)
        if found and part in seen:
            raise Refused("repeats what was said")
        if found:
            seen.add(part)
        if part:
            pieces.append({"text": found.text if found else part,
                           "kind": found.kind if found else TEMPLATE})
    if any(p.mark not in seen and p.kind == WORDS for p in words.values()):
        raise Refused("leaves out what was said")
    return pieces


def render_pieces(template, messages, context):
    plain = template.render(messages=texts(messages, False), **context)
    pieces = put_back(template.render(messages=texts(messages, True), **context), messages)
    if "".join(p["text"] for p in pieces) != plain:
        raise Refused("changes what was said, or looks into it")
    return pieces


def answer_end(template, context):
    """What the template puts after an answer."""
    messages = [(role, [Words(role, kind)], []) for role, kind in
                (("user", WORDS), ("assistant", ANSWER), ("user", WORDS))]
    marks = [parts[0].mark for _, parts, _ in messages]
    try:
        rendered = template.render(messages=texts(messages, True), **context)
        return rendered.split(marks[1])[1].split(marks[2])[0]
    except Exception:  # it ends with the model's own end tokens, then
        return ""


def render(jinja2, request):
    environment = make_environment(jinja2, time.localtime(request["now"]))
    template = environment.from_string(request["template"])
    context = {"bos_token": request["bos"], "eos_token": request["eos"],
               "add_generation_prompt": True, "tools": None, "documents": None}
    if "enable_thinking" in request:
        context["enable_thinking"] = request["enable_thinking"]
    messages = [(m["role"], cut(m["content"], m["role"]),
                 cut(m.get("reasoning_content", ""), m["role"])) for m in request["messages"]]
    if messages[0][0] == "system" and not has_place(jinja2, template, messages, context):
        messages = join_system(messages)
    try:
        pieces = render_pieces(template, messages, context)
    except Refused:  # of reasoning the template may do without
        messages = [(role, parts, []) for role, parts, _ in messages]
        pieces = render_pieces(template, messages, context)
    return {"pieces": pieces, "answer_end": answer_end(template, context)}


def one_line(error):
    return " ".join(str(error).split())[:200] or type(error).__name__


def answer(jinja2, request):
    try:
        return render(jinja2, request)
    except Refused as error:
        return {"error": "the model's chat template %s: what it renders cannot be trusted" % error}
    except MemoryError:
        return {"error": "the model's chat template needs more memory than it may have"}
    except RecursionError:
        return {"error": "the model's chat template calls itself for ever"}
    except jinja2.exceptions.SecurityError as error:
        return {"error": "the model's chat template does what it may not: " + one_line(error)}
    except Exception as error:
        return {"error": "the model's chat template failed: " + one_line(error)}


def main():
    if sys.argv[1:] == ["--check"]:
        return check()
    try:
        import jinja2
        import jinja2.debug
        import jinja2.ext
        import jinja2.sandbox
    except ImportError:
        print(json.dumps({"error": APT}))
        return 1
    request = json.load(sys.stdin)
    time.localtime()
    make_environment(jinja2, time.localtime(0)).from_string("{{ '%Y'|upper }}").render()
    give_up()
    sys.stdout.write(json.dumps(answer(jinja2, request)))
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
