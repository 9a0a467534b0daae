/* What the parts of a hostile kernel share. */
#ifndef HOSTILE_H
#define HOSTILE_H
#include "vcpus.h"

/* A domain: this one, domain 0, a peer, or none. */
u16 some_domid(void);
/* Whether `domid` is that of this domain; all others must be refused where there is no grant. */
bool is_self(u16 domid);
/* What must not be done for a domain without rights. */
void must_refuse(s64 result, const char *what, u64 detail);
/* From the command line: self=DOMID, and peer=DOMID with peers=N of them in a row. */
void whom_init(void);

/* By machine frame: is it this domain's; was it ever? */
bool is_own(u64 mfn);
bool was_own(u64 mfn);
void set_own(u64 mfn, bool own);

/* One operation each. */
void granter_once(void);
void mapper_once(void);
void copier_once(void);
void grant_table_once(void);
void event_once(void);
void memory_once(void);
void foreign_once(void);
void privileged_once(void);
void vcpu_once(void);
void instruction_once(void);
void device_once(void);

void grants_init(void);
/* Is it the handle of a mapping that somebody looks after? */
bool is_kept(u32 handle);
/* Gives all of this domain's grants of something of its own to somebody. */
void grant_everything(void);
/* Has this domain a device? */
bool device_init(void);
/* Is it one of the device's pages? */
bool is_register(u64 mfn);
/* Copies that it was told to make. */
u64 device_copies(void);
/* Is it one of the frames of this domain's grant table? */
bool is_grant_frame(u64 mfn);
/* Gives a frame back to the hypervisor; false: it is not this domain's. */
bool give_back(u64 mfn);
/* Gives scratch pages that have lost their frames new ones, and gives back what else was got. */
void refill(void);
#endif
