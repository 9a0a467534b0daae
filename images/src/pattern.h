/* Data that can be recognised again: what is written, sent or expected follows from a stream and a position. */
#ifndef TANDEM_PATTERN_H
#define TANDEM_PATTERN_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* One 64-bit word of the pattern; the same function is in testbed/src/pattern.rs. */
static inline uint64_t pattern_word(uint64_t stream, uint64_t index)
{
	uint64_t z = stream * 0xd1342543de82ef95ull + index * 0x9e3779b97f4a7c15ull + 0x632be59bd9b4e019ull;

	z = (z ^ (z >> 29)) * 0xbf58476d1ce4e5b9ull;
	return z ^ (z >> 32);
}

static inline void pattern_fill(void *buf, size_t len, uint64_t stream)
{
	uint8_t *p = buf;
	uint64_t i, w;

	for (i = 0; len >= 8; i++, p += 8, len -= 8) {
		w = pattern_word(stream, i);
		memcpy(p, &w, 8);
	}
	w = pattern_word(stream, i);
	memcpy(p, &w, len);
}

/* Checksum over 64-bit words, the last one padded with zeroes. */
static inline uint64_t checksum(const void *buf, size_t len)
{
	const uint8_t *p = buf;
	uint64_t h = 0xcbf29ce484222325ull ^ len, w;

	for (; len; p += 8, len -= len < 8 ? len : 8) {
		w = 0;
		memcpy(&w, p, len < 8 ? len : 8);
		h = (h ^ w) * 0x100000001b3ull;
		h ^= h >> 31;
	}
	return h;
}
#endif
