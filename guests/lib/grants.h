/* Requests of grant_table_op, for the tests that need them. */
#ifndef GRANTS_H
#define GRANTS_H
#include "guest.h"

struct map {
	u64 host_addr;
	u32 flags, ref;
	u16 domid;
	int16_t status;
	u32 handle;
	u64 bus_addr;
};
struct unmap {
	u64 host_addr, bus_addr;
	u32 handle;
	int16_t status;
};
struct copy {
	struct {
		u64 ref_or_gfn;
		u16 domid, offset, pad[2];
	} from, to;
	u16 len, flags;
	int16_t status;
};
#endif
