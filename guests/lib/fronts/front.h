/* Front ends of network interfaces, of this domain or of others that it has made. */
#ifndef FRONT_H
#define FRONT_H
#include "channel.h"

enum { SG = 1, CSUM_IPV4 = 8, ANY_SOURCE = 32, UPLINK = 64, NO_OFFLOAD = 128 };
enum { TX_ENDED = 1, RX_ENDED = 2 };
enum { NO_WAY_OUT, INTERFACE_IS_WAY_OUT, CARD_IS_WAY_OUT };

struct channel_switch {
	u32 name, flags;
};
struct channel_vif {
	u32 vif, flags;
};
struct channel_connect {
	u16 guest, backend;
	u32 device, switch_name, flags, nr_queues, rate_interval_us;
	struct channel_queue {
		u32 tx_ring, rx_ring, tx_port, rx_port;
	} queues[8];
	u8 mac[6];
	u16 weight;
	u64 rate_bytes;
	u32 vif, pad;
};
struct channel_status {
	u32 vif, next;
	u16 guest, backend;
	u32 device, switch_name, flags;
	u8 mac[6];
	u16 tx_waiting;
	u32 state, nr_queues;
	u64 tx_packets, tx_bytes, tx_errors, tx_dropped, tx_refused, rx_packets, rx_bytes, rx_errors, rx_dropped;
};
struct channel_way_out {
	u32 switch_name, kind, vif;
	u16 domid, waiting;
	u32 state, pad;
	u64 out_packets, out_bytes, out_dropped, in_packets, in_bytes, in_dropped;
};
struct channel_hold {
	u32 switch_name, hold_ms;
};
_Static_assert(sizeof(struct channel_way_out) == 72, "layouts");
_Static_assert(sizeof(struct channel_connect) == 176 && sizeof(struct channel_status) == 112, "layouts");

/* Slots of a ring. */
enum { SLOTS = 256, CSUM_BLANK = 1, RX_VALIDATED = 1, MORE_DATA = 4, EXTRA_INFO = 8, RSP_ERROR = -1, RSP_NULL = 1, EXTRA_GSO = 1, GSO_TCPV4 = 1 };
struct tx_slot {
	union {
		struct {
			u32 gref;
			u16 offset, flags, id, size;
		} request;
		struct {
			u16 id;
			int16_t status;
		} response;
	};
};
struct rx_slot {
	union {
		struct {
			u16 id, pad;
			u32 gref;
		} request;
		struct {
			u16 id, offset, flags;
			int16_t status;
		} response;
	};
};
struct ring {
	volatile u32 req_prod, req_event, rsp_prod, rsp_event;
	u32 room[12];
	union {
		volatile struct tx_slot tx[SLOTS];
		volatile struct rx_slot rx[SLOTS];
	};
};

/* Pages of a front end, each with a grant of its own. */
enum { TX_RING, RX_RING, TX_DATA, NR_TX_DATA = 4, RX_DATA = TX_DATA + NR_TX_DATA, NR_RX_DATA = 24,
	NR_PAGES = RX_DATA + NR_RX_DATA, NR_FRONTS = 6 };
/* Of its grants; those below may be for other tests. */
enum { FIRST_REF = 40 };

struct front {
	u16 domid;
	u32 number, device, first_ref, vif, tx_port, rx_port, tx_cons, rx_cons;
	struct ring *tx, *rx;
	/* Those of its pages, whose references begin with `first_ref`. */
	struct grant_entry *grants;
	u8 (*page)[PAGE];
	u8 mac[6], posted[SLOTS];
	/* Of the first slot of what it has received last. */
	u16 rx_flags;
};

/* The front end `number`, with fresh pages and ports, of this domain or of a new one, `domid`. Not connected. */
void make_front(struct front *front, u32 number, u16 domid);
/* Lets the pages of another domain's go. */
void let_go_of_pages(struct front *front);
/* Its rings and ports. */
struct channel_queue queue_of(const struct front *front);
struct channel_connect request_of(const struct front *front, u32 switch_name, u32 flags);
void connect_front(struct front *front, u32 switch_name, u32 flags);
void disconnect_front(struct front *front);
/* Closes the ports of a front end of this domain's. */
void close_ports(struct front *front);
/* A new one grants all to another domain, and is connected with pages to receive into. */
void connect_granting_to(struct front *front, u32 which, u16 domid, u32 switch_name);
struct channel_status status_of(const struct front *front);
u32 new_switch(void);
struct channel_way_out way_out_of(u32 switch_name);

/* A frame of `len` bytes in `frame`: addresses, and bytes that depend on `seed`. */
extern u8 frame[65536];
void make_frame(const u8 *to, const u8 *from, u32 len, u32 seed);
/* Puts the frame into the transmit ring in pieces of at most `piece` bytes. Nobody hears of it but by kick_tx(). */
void put(struct front *front, u32 len, u32 piece);
/* The same with a TCP packet over IPv4, whose checksum is blank, that is to be cut into segments of so many bytes; not if that is 0. */
void put_whole(struct front *front, u32 len, u32 piece, u32 segment);
/* One slot, whatever it says. */
void put_slot(struct front *front, u32 gref, u32 offset, u32 flags, u32 size);
/* A packet of one slot, whose answer has this name. */
void put_slot_as(struct front *front, u32 id, u32 gref, u32 offset, u32 size);
/* Only tells of what is in the transmit ring. One that does so all the time is told of answers later, all together. */
s64 notify_tx(struct front *front);
/* The vCPU sleeps for 10 us. Who does so has its packets sent and sees all answers. */
void sleep_a_moment(void);
/* Both. Not for an operation in the middle of which others may find that its vCPU sleeps. */
s64 kick_tx(struct front *front);
s64 kick_rx(struct front *front);
/* Frame, kick, one piece a page. */
void send(struct front *front, const u8 *to, const u8 *from, u32 len, u32 seed);
/* Posts receive pages. */
void post(struct front *front, u32 nr);
/* The next transmit response, which is there: its status. */
int answer(struct front *front);
u32 nr_answers(const struct front *front);
/* The next received packet; its length, or 0 if there is none. */
u32 receive(struct front *front, u8 *to);
/* It has received exactly the frame in `frame`. */
void check_received(struct front *front, u32 len, const char *what);
void check_nothing(struct front *front, const char *what);
/* Grants in use, ring pages included. */
u32 nr_in_use(const struct front *front);
/* Puts packets into the ring that nobody else sees, until vCPU 0 has an event. For vCPU 1, when check_interrupted() brings it up. */
void keep_ring_full(void);
/* Packets of the frame in `frame` keep its ring full while this vCPU notifies, which has an event nevertheless. vCPU 1 is down. */
void check_interrupted(struct front *front, u32 len, const char *what);

void hostile_front_ends(void);
/* Interfaces with several queues. */
void queues(void);
void domains_die(void);
void beside(void);
/* Behind the one before. */
void alone(void);
void busy(struct front *from, struct front *to);
void outside(void);
void measure(void);
#endif
