/* gpu_worker/json_acceptor.c - see json_acceptor.h. */
#include "gpu_worker/json_acceptor.h"

#include <string.h>

/* What may come next. */
enum json_place {
    PLACE_START,        /* the object */
    PLACE_OBJECT_FIRST, /* the first key, or the end */
    PLACE_KEY,
    PLACE_COLON,
    PLACE_VALUE,
    PLACE_ARRAY_FIRST, /* the first value, or the end */
    PLACE_AFTER,       /* a value is over: a comma, or the end of its level */
    PLACE_COMPLETE,    /* nothing */
    /* within a string */
    PLACE_STRING,
    PLACE_CHARACTER, /* `left` more bytes of it */
    PLACE_ESCAPE,
    PLACE_HEX,
    PLACE_PAIR_ESCAPE, /* the second half of a character: backslash, u */
    PLACE_PAIR_U,
    /* within a word or a number */
    PLACE_WORD,
    PLACE_MINUS,
    PLACE_ZERO,
    PLACE_WHOLE,
    PLACE_POINT,
    PLACE_FRACTION,
    PLACE_E,
    PLACE_E_SIGN,
    PLACE_EXPONENT,
};

#define EXPONENT_DIGITS 2u

static const char *const words[] = {"true", "false", "null"};

void json_acceptor_init(struct json_acceptor *j)
{
    *j = (struct json_acceptor){.place = PLACE_START};
}

bool json_acceptor_is_complete(const struct json_acceptor *j)
{
    return j->place == PLACE_COMPLETE;
}

static bool go(struct json_acceptor *j, enum json_place place)
{
    j->place = (uint8_t)place;
    j->count = 0;
    return true;
}

/* ---- levels ---------------------------------------------------------------------------------- */

static bool open_level(struct json_acceptor *j, bool object)
{
    if (j->depth == JSON_DEPTH_MAX)
        return false;
    uint32_t bit = UINT32_C(1) << j->depth++;
    j->objects = object ? j->objects | bit : j->objects & ~bit;
    return go(j, object ? PLACE_OBJECT_FIRST : PLACE_ARRAY_FIRST);
}

static bool in_object(const struct json_acceptor *j)
{
    return j->objects >> (j->depth - 1) & 1;
}

static bool close_level(struct json_acceptor *j, bool object)
{
    if (in_object(j) != object)
        return false;
    return go(j, --j->depth ? PLACE_AFTER : PLACE_COMPLETE);
}

/* ---- strings --------------------------------------------------------------------------------- */

/* The first byte of a character beyond ASCII, and what may follow it: Unicode 15, table 3-7. */
static bool begin_character(struct json_acceptor *j, uint8_t byte)
{
    if (byte < 0xc2 || byte > 0xf4)
        return false;
    j->left = byte < 0xe0 ? 1 : byte < 0xf0 ? 2 : 3;
    j->low = byte == 0xe0 ? 0xa0 : byte == 0xf0 ? 0x90 : 0x80;
    j->high = byte == 0xed ? 0x9f : byte == 0xf4 ? 0x8f : 0xbf;
    return go(j, PLACE_CHARACTER);
}

static bool take_character(struct json_acceptor *j, uint8_t byte)
{
    if (byte < j->low || byte > j->high)
        return false;
    j->low = 0x80;
    j->high = 0xbf;
    return --j->left ? true : go(j, PLACE_STRING);
}

static bool begin_string(struct json_acceptor *j, bool key)
{
    j->key = key;
    return go(j, PLACE_STRING);
}

static bool take_string(struct json_acceptor *j, uint8_t byte)
{
    if (byte == '"')
        return go(j, j->key ? PLACE_COLON : PLACE_AFTER);
    if (byte == '\\')
        return go(j, PLACE_ESCAPE);
    return byte >= 0x80 ? begin_character(j, byte) : byte >= 0x20;
}

static bool begin_hex(struct json_acceptor *j, bool paired)
{
    j->code = 0;
    j->paired = paired;
    return go(j, PLACE_HEX);
}

static bool take_escape(struct json_acceptor *j, uint8_t byte)
{
    if (byte == 'u')
        return begin_hex(j, false);
    return byte && strchr("\"\\/bfnrt", byte) && go(j, PLACE_STRING);
}

static int hex_value(uint8_t byte)
{
    if (byte >= '0' && byte <= '9')
        return byte - '0';
    byte |= 0x20;
    return byte >= 'a' && byte <= 'f' ? byte - 'a' + 10 : -1;
}

/* The two halves of a character are D800 to DBFF and DC00 to DFFF, known by their second digit. */
static bool take_hex(struct json_acceptor *j, uint8_t byte)
{
    int digit = hex_value(byte);
    if (digit < 0)
        return false;
    j->code = (uint16_t)(j->code << 4 | digit);
    j->count++;
    if (j->count == 1)
        return !j->paired || digit == 0xd;
    if (j->count == 2 && j->code >> 4 == 0xd)
        return j->paired == (digit >= 0xc);
    if (j->count < 4)
        return true;
    if (j->code == 0)
        return false;
    bool first_half = !j->paired && j->code >= 0xd800 && j->code < 0xdc00;
    return go(j, first_half ? PLACE_PAIR_ESCAPE : PLACE_STRING);
}

/* ---- values ---------------------------------------------------------------------------------- */

static bool begin_word(struct json_acceptor *j, uint8_t word)
{
    j->word = word;
    go(j, PLACE_WORD);
    j->count = 1;
    return true;
}

static bool take_word(struct json_acceptor *j, uint8_t byte)
{
    const char *word = words[j->word];
    if (word[j->count] != byte)
        return false;
    return word[++j->count] ? true : go(j, PLACE_AFTER);
}

static bool begin_number(struct json_acceptor *j, uint8_t byte)
{
    go(j, byte == '0' ? PLACE_ZERO : PLACE_WHOLE);
    j->count = 1;
    return true;
}

static bool begin_value(struct json_acceptor *j, uint8_t byte)
{
    switch (byte) {
    case '{':
        return open_level(j, true);
    case '[':
        return open_level(j, false);
    case '"':
        return begin_string(j, false);
    case 't':
        return begin_word(j, 0);
    case 'f':
        return begin_word(j, 1);
    case 'n':
        return begin_word(j, 2);
    case '-':
        return go(j, PLACE_MINUS);
    default:
        return byte >= '0' && byte <= '9' && begin_number(j, byte);
    }
}

static bool take_after(struct json_acceptor *j, uint8_t byte)
{
    if (byte == ',')
        return go(j, in_object(j) ? PLACE_KEY : PLACE_VALUE);
    return (byte == '}' || byte == ']') && close_level(j, byte == '}');
}

static bool is_white(uint8_t byte)
{
    return byte == ' ' || byte == '\n' || byte == '\r' || byte == '\t';
}

/* A digit where it may be; what ends a number is what follows a value. */
static bool take_number(struct json_acceptor *j, uint8_t byte)
{
    enum json_place place = j->place;
    if (byte >= '0' && byte <= '9') {
        static const uint8_t next[] = {
            [PLACE_WHOLE] = PLACE_WHOLE,       [PLACE_POINT] = PLACE_FRACTION,
            [PLACE_FRACTION] = PLACE_FRACTION, [PLACE_E] = PLACE_EXPONENT,
            [PLACE_E_SIGN] = PLACE_EXPONENT,   [PLACE_EXPONENT] = PLACE_EXPONENT};
        unsigned most = place == PLACE_EXPONENT ? EXPONENT_DIGITS : JSON_DIGITS_MAX;
        if (place == PLACE_MINUS)
            return begin_number(j, byte);
        if (place == PLACE_ZERO || j->count == most)
            return false;
        j->place = next[place];
        j->count = j->place == place ? (uint8_t)(j->count + 1) : 1;
        return true;
    }
    bool whole = place == PLACE_ZERO || place == PLACE_WHOLE;
    if (byte == '.' && whole)
        return go(j, PLACE_POINT);
    if ((byte | 0x20) == 'e' && (whole || place == PLACE_FRACTION))
        return go(j, PLACE_E);
    if ((byte == '+' || byte == '-') && place == PLACE_E)
        return go(j, PLACE_E_SIGN);
    if (!whole && place != PLACE_FRACTION && place != PLACE_EXPONENT)
        return false;
    go(j, PLACE_AFTER);
    if (!is_white(byte))
        return take_after(j, byte);
    j->count = 1;
    return true;
}

/* ---- between marks --------------------------------------------------------------------------- */

static bool take_mark(struct json_acceptor *j, uint8_t byte)
{
    if (is_white(byte))
        return ++j->count <= JSON_WHITE_SPACE_MAX;
    switch (j->place) {
    case PLACE_START:
        return byte == '{' && open_level(j, true);
    case PLACE_OBJECT_FIRST:
        return byte == '}' ? close_level(j, true) : byte == '"' && begin_string(j, true);
    case PLACE_KEY:
        return byte == '"' && begin_string(j, true);
    case PLACE_COLON:
        return byte == ':' && go(j, PLACE_VALUE);
    case PLACE_ARRAY_FIRST:
        return byte == ']' ? close_level(j, false) : begin_value(j, byte);
    case PLACE_VALUE:
        return begin_value(j, byte);
    default:
        return take_after(j, byte);
    }
}

bool json_acceptor_take(struct json_acceptor *j, uint8_t byte)
{
    switch (j->place) {
    case PLACE_COMPLETE:
        return false;
    case PLACE_STRING:
        return take_string(j, byte);
    case PLACE_CHARACTER:
        return take_character(j, byte);
    case PLACE_ESCAPE:
        return take_escape(j, byte);
    case PLACE_HEX:
        return take_hex(j, byte);
    case PLACE_PAIR_ESCAPE:
        return byte == '\\' && go(j, PLACE_PAIR_U);
    case PLACE_PAIR_U:
        return byte == 'u' && begin_hex(j, true);
    case PLACE_WORD:
        return take_word(j, byte);
    default:
        return j->place >= PLACE_MINUS ? take_number(j, byte) : take_mark(j, byte);
    }
}
