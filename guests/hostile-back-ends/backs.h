/* What the parts of this kernel share. */
#ifndef BACKS_H
#define BACKS_H
#include "stations.h"

/* A disk whose back ends do what they should, and end at any time; and those of hostile ones. Their guests are good, all of them. */
enum { GOOD, HOSTILE, NR_DISKS = 3 };
/* The domains that they grant to: that of the hostile ones ends, too. */
enum { GOOD_SERVICE = 8, HOSTILE_SERVICE };
extern struct station stations[NR_DISKS];

/* Those that lie. */
void answers_once(void);
void indices_once(void);
void slots_once(void);
void bytes_once(void);
void storm_once(void);
void ports_once(void);
void lives_once(void);
void connection_once(void);
void service_once(void);
void raw_once(void);
/* A hostile disk is there, and has no back end. */
void end_of_lies(struct station *s);
void make_hostile_service(void);
void end_hostile_service(void);

/* The network: outside.c. */
void connect_network(void);
void disconnect_network(void);
void exchange_once(void);
void outside_once(void);
void way_out_once(void);
void out_lies_once(void);
void honest_way_out(void);
void say_network(void);
#endif
