/* The network of guests whose way out is the driver domain's interface. */
#ifndef NETWORK_H
#define NETWORK_H
#include "life.h"

/* The grants of the wire, for each set a driver domain's. */
enum { WIRE_REF = 400 };

/* `backend`: the domain that the guests grant to. `first`: the driver domain that has set 0; the next one has set 1. */
void connect_network(u16 backend, u16 first);
void disconnect_network(void);

/* Makes a domain that does nothing yet, with an interface that is not connected, and says in `life` what that is made of. */
void make_interface(u32 set, u16 domid, struct life *life);
/* It becomes the way out; or what the hypervisor says. */
s64 connect_interface(u32 set);
/* Guests send and receive, and so does who is outside. */
void network_once(void);
/* Its domain is dead, and nobody does anything: what it was given, has sent and has taken is looked at. */
void end_interface(u32 set);
/* Nobody sends anything more, and the way out lives: has all come that is to come? Else there is more to do. */
bool has_all_come(u32 set);
/* `nr`: driver domains that there have been. */
void say_network(u64 nr);
#endif
