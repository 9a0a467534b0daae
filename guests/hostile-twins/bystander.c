/* A domain that never runs, whose memory is what it was. */
#include "twins.h"
#include "domains.h"

enum { DOMID = 9, NR_PAGES = 8 };
static u8 windows[NR_PAGES][PAGE] SHARED __attribute__((aligned(4096)));

static u64 expected(u32 page, u32 word)
{
	return (page * 512ul + word) * 0x9e3779b97f4a7c15 ^ 0x5a5a;
}

void bystander_init(void)
{
	u64 frames[NR_PAGES];
	for (u32 n = 0; n < NR_PAGES; n++)
		frames[n] = n;
	check_result(create_domain(DOMID), 0, "createdomain");
	check_result(populate_domain(DOMID, frames, NR_PAGES), NR_PAGES, "memory for the new domain");
	for (u32 n = 0; n < NR_PAGES; n++) {
		check_result(map_frame_of(DOMID, windows[n], frames[n]), 0, "mapping its pages");
		for (u32 word = 0; word < PAGE / 8; word++)
			((volatile u64 *)windows[n])[word] = expected(n, word);
	}
}

void bystander_check(void)
{
	for (u32 n = 0; n < NR_PAGES; n++)
		for (u32 word = 0; word < PAGE / 8; word++) {
			u64 found = ((volatile u64 *)windows[n])[word];
			if (!check(found == expected(n, word), "another's page %u has %#lx in word %u", n, found, word))
				return;
		}
}

void bystander_end(void)
{
	check_result(destroy_domain(DOMID), 0, "destroydomain");
	for (u32 n = 0; n < NR_PAGES; n++)
		make_writable(windows[n]);
	check(domain_is_gone(DOMID), "the other domain never goes");
}
