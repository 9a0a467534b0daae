/* A twin runs on one CPU while the domain changes its page tables on another: as for the other mode. */
#define twin_hammer stlb_hammer
#define address_of stlb_address_of
#include "../twins/beside.c"
