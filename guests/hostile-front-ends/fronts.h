/* What the parts of this kernel share. */
#ifndef FRONTS_H
#define FRONTS_H
#include "lies.h"

/* Front ends: hostile ones; one whose packets are looked at; and two that send to each other by a switch of their own. */
enum { HOSTILE = 3, WATCHED = HOSTILE, GOOD_A, GOOD_B };
/* The domain that the last three have granted to. */
enum { BACK_END = 8 };
extern struct front fronts[NR_FRONTS];
/* Of the hostile ones and the watched one; of the good ones. */
extern u32 hostile_switch, good_switch;

/* One operation each of a hostile front end. */
void packets_once(void);
void slots_once(void);
void requests_once(void);
void indices_once(void);
void grants_once(void);
void storm_once(void);
void again_once(void);
void again_if_ended(u32 which);
void ports_once(void);
void child_once(void);
/* channel_op as the control domain, with random arguments. */
void raw_once(void);
/* A hostile front end is there again, with fresh pages and a sound ring; nobody else does anything. */
void renew(u32 which);
void hostile_end(void);
void say_hostile(void);
/* One of them may have sent with any address. */
extern u32 has_any_source;

/* One operation each of a hostile guest of a disk, or of its back end; of a good guest or its back end. */
void disk_requests_once(void);
void disk_words_once(void);
void disk_grants_once(void);
void disk_watch_once(void);
void disk_back_once(void);
void disk_again_once(void);
void good_disk_once(void);
/* Nobody else does anything. */
void disks_are_sure(void);
void connect_disks(void);
void disconnect_disks(void);
void say_disks(void);

/* Connects the watched one, or a good one. */
void connect_good(u32 which, u32 switch_name);
/* What the watched one has received is from who sent it. */
void watch_once(void);
/* The good ones lose nothing. */
void good_once(void);
void say_good(void);
#endif
