/* Hostile front ends of network interfaces: what they have in their rings, and what they do to grants and ports. Nobody is notified. */
#ifndef LIES_H
#define LIES_H
#include "front.h"
#include "hostile.h"

/* Whose addresses packets have; one of them is meant more often. */
struct who {
	const struct front *fronts;
	u32 nr;
	const struct front *favourite;
};

/* Packets that nearly make sense, in several slots, with and without segments to be cut. */
void put_packets(struct front *front, const struct who *who);
/* Slots that make none. */
void put_slots(struct front *front);
/* Pages to receive into, some of which are none. */
void put_requests(struct front *front);
void spoil_indices(struct front *front);
/* Takes grants away and gives others, whatever is in use; now and then also the rings'. */
void spoil_grants(struct front *front);
void spoil_ports(struct front *front);
/* Notifies, for nothing. */
void storm(struct front *front);
#endif
