/* What hostile front ends do beside sending: grants, events, connections; and domains that end. */
#include "fronts.h"

enum { CHILD = 5, CHILD_FRONT = WATCHED - 1 };

static u32 locks[HOSTILE] SHARED;
u32 has_any_source SHARED;

void grants_once(void)
{
	spoil_grants(&fronts[up_to(HOSTILE)]);
}

void storm_once(void)
{
	storm(&fronts[up_to(HOSTILE)]);
}

void slots_once(void)
{
	struct front *front = &fronts[up_to(HOSTILE)];
	put_slots(front);
	if (up_to(2))
		notify_tx(front);
}

void requests_once(void)
{
	struct front *front = &fronts[up_to(HOSTILE)];
	put_requests(front);
	kick_rx(front);
}

void indices_once(void)
{
	struct front *front = &fronts[up_to(HOSTILE)];
	spoil_indices(front);
	if (up_to(2))
		notify_tx(front);
	else
		kick_rx(front);
}

void packets_once(void)
{
	static u32 in_use[HOSTILE] SHARED;
	static const struct who who = { fronts, NR_FRONTS, &fronts[WATCHED] };
	u32 which = up_to(HOSTILE);
	/* Two at once in a ring make no packets, which is tried now and then. */
	bool is_locked = up_to(16);
	if (is_locked && !try_lock(&in_use[which]))
		return;
	if (up_to(16) == 0)
		again_if_ended(which);
	put_packets(&fronts[which], &who);
	notify_tx(&fronts[which]);
	if (is_locked)
		unlock(&in_use[which]);
}

static u32 some_flags(void)
{
	static const u32 usual[] = { 0, SG, 31, 7, 25 };
	return up_to(8) ? usual[up_to(COUNT(usual))] : up_to(128);
}

/* What all of them have done. */
static struct {
	u64 sent, wrong, lost, refused, received, ended, connected;
} sums SHARED;

static void let_go(struct front *front)
{
	struct channel_status status = { .vif = front->vif };
	if (channel_op(VIF_STATUS, &status) == 0) {
		sums.sent += status.tx_packets, sums.wrong += status.tx_errors, sums.lost += status.tx_dropped;
		sums.refused += status.tx_refused, sums.received += status.rx_packets, sums.ended += (status.state & 3) != 0;
		sums.connected++;
	}
	struct channel_vif request = { front->vif, 0 };
	note(channel_op(VIF_DISCONNECT, &request));
}

static void join(u32 which, u32 flags)
{
	struct front *front = &fronts[which];
	struct channel_connect request = request_of(front, hostile_switch, flags);
	if (up_to(8) == 0)
		request.rate_bytes = 1000 + up_to(100000), request.rate_interval_us = 1 + up_to(100000);
	if (up_to(32) == 0)
		((u8 *)&request)[8 + up_to(sizeof(request) - 8)] ^= 1 << up_to(8);
	/* The switch of the good ones is theirs. */
	if (request.switch_name == good_switch || memcmp(request.mac, front->mac, 6))
		return;
	/* Else what is received could not be judged. */
	if (up_to(64))
		request.flags &= ~(ANY_SOURCE | UPLINK);
	else
		has_any_source |= request.flags & (ANY_SOURCE | UPLINK);
	s64 result = channel_op(VIF_CONNECT, &request);
	note(result);
	if (result == 0)
		front->vif = request.vif;
}

/* Another connection on the same rings, or on fresh ones, or on what was a ring no more. */
static void again(u32 which)
{
	struct front *front = &fronts[which];
	if (!try_lock(&locks[which]))
		return;
	if (front->domid == 0) {
		if (up_to(8))
			let_go(front);
		if (up_to(2)) {
			close_ports(front);
			make_front(front, which, 0);
		} else if (up_to(4) == 0) {
			/* A ring where other vCPUs write, too, and which may be given away. */
			front->grants[up_to(2)].frame = mfn_of(scratch());
		}
		join(which, some_flags());
		post(front, up_to(128));
	}
	unlock(&locks[which]);
}

void again_once(void)
{
	again(up_to(HOSTILE));
}

void again_if_ended(u32 which)
{
	struct channel_status status = { .vif = fronts[which].vif };
	if (channel_op(VIF_STATUS, &status) || (status.state & (TX_ENDED | RX_ENDED)))
		again(which);
}

void renew(u32 which)
{
	struct front *front = &fronts[which];
	let_go(front);
	close_ports(front);
	make_front(front, which, 0);
	connect_front(front, hostile_switch, SG);
}

/* Not while it gets others: numbers of ports that are closed may be anybody's soon. */
void ports_once(void)
{
	u32 which = up_to(HOSTILE);
	if (!try_lock(&locks[which]))
		return;
	spoil_ports(&fronts[which]);
	unlock(&locks[which]);
}

/* The last of the hostile ones is a domain's for a while, which ends in the middle. */
void child_once(void)
{
	static const u32 which = CHILD_FRONT;
	struct front *front = &fronts[which];
	if (me || !try_lock(&locks[which]))
		return;
	let_go(front);
	if (front->domid == 0) {
		close_ports(front);
		make_front(front, which, CHILD);
		join(which, some_flags());
		post(front, up_to(128));
	} else {
		check_result(destroy_domain(CHILD), 0, "destroydomain");
		let_go_of_pages(front);
		check(domain_is_gone(CHILD), "the domain of a front end never goes");
		make_front(front, which, 0);
		join(which, some_flags());
	}
	unlock(&locks[which]);
}

/* Is that the name of one that is to be left alone? */
static bool is_good(u32 vif)
{
	return vif == fronts[WATCHED].vif || vif == fronts[GOOD_A].vif || vif == fronts[GOOD_B].vif;
}

void raw_once(void)
{
	/* No argument is longer. */
	static u32 argument[64];
	u32 cmd = up_to(8) ? up_to(8) : draw() >> up_to(32);
	for (u32 n = 0; n < COUNT(argument); n++)
		argument[n] = up_to(4) ? up_to(2) ? 0 : up_to(64) : some_value();
	if (up_to(2))
		argument[0] = fronts[up_to(NR_FRONTS)].vif ^ (up_to(2) ? 0 : 1 << up_to(32));
	u64 at = up_to(16) ? (u64)argument : some_value();
	bool is_of_disks = cmd >= DISK_CONNECT && cmd <= DISK_CLOSE_PORT && cmd != DISK_STATUS && cmd != DISK_NEXT;
	if (is_of_disks || cmd == VIF_CONNECT || (cmd == VIF_DISCONNECT && is_good(argument[0])))
		return;
	if (at != (u64)argument && (cmd == VIF_DISCONNECT || cmd == SWITCH_DESTROY))
		at = draw();
	s64 result = channel_op(cmd, (void *)at);
	note(result);
	if (cmd != SWITCH_CREATE || result || at != (u64)argument)
		return;
	check_result(channel_op(SWITCH_DESTROY, argument), 0, "destroying a switch");
}

void say_hostile(void)
{
	printk("  hostile ones: %lu connections, of which %lu have ended a ring; %lu packets sent, %lu wrong, %lu lost, %lu refused; %lu received\n",
	       sums.connected, sums.ended, sums.sent, sums.wrong, sums.lost, sums.refused, sums.received);
}

void hostile_end(void)
{
	for (u32 which = 0; which < HOSTILE; which++) {
		struct front *front = &fronts[which];
		let_go(front);
		if (front->domid == 0) {
			close_ports(front);
			continue;
		}
		check_result(destroy_domain(CHILD), 0, "destroydomain");
		let_go_of_pages(front);
		check(domain_is_gone(CHILD), "the domain of a front end never goes");
	}
}
