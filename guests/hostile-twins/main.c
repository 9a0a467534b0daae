/*
 * Hostile twins: images that are good, spoilt or wrong are loaded, called, lent to and unloaded from several vCPUs at once, with random
 * arguments, also as drivers of network cards, while page tables that twins see, and memory that they use, are changed and given away.
 * Every call is answered, another domain's memory stays what it is, and no memory is lost. (cpus: 2) (shares: chaos channels fronts twins)
 * (differs: stock Xen has no twins)
 *
 * The command line may say seed=N, operations=N, vcpus=N: docs/random-kernels.md.
 */
#include "domains.h"
#include "twins.h"

const char test_name[] = "hostile-twins";

enum { AUDIT_EACH = 1 << 14 };
/* Pages that were given back, but are still some vCPU's descriptor tables or records; and a few of which the hypervisor's heap keeps a part. */
enum { STILL_USED = 64 };
/* The machine has fewer frames. */
enum { MFNS = 1 << 18 };
static u64 nr_operations;

static void once(void)
{
	switch (up_to(64)) {
	case 0: DO(fill); break;
	case 1: DO(write_entry); break;
	case 2: DO(granter_once); break;
	case 3: DO(memory_once); break;
	case 4: DO(vcpu_once); break;
	case 5: case 6: DO(mmu_once); break;
	case 7: DO(copier_once); break;
	case 8: case 9: case 10: case 11: case 12: case 13: DO(root_once); break;
	case 14: case 15: case 16: DO(load_once); break;
	case 17: case 18: DO(unload_once); break;
	case 19: case 20: case 21: case 22: DO(resume_once); break;
	case 23: case 24: case 25: case 26: case 27: case 28: DO(lend_once); break;
	case 29: case 30: case 31: DO(notes_once); break;
	case 32: DO(raw_once); break;
	case 33: case 34: case 35: case 36: case 37: case 38: DO(card_once); break;
	default: DO(call_once);
	}
}

static void nothing(void)
{
}

static bool housekeeping(u64 n)
{
	if (n % 64)
		return true;
	load_vcpus();
	wake_vcpus();
	if (n % 512 == 0) {
		call_roll(nothing);
		refill();
		bystander_check();
	}
	return keep_books(nr_operations, AUDIT_EACH);
}

static void say(void)
{
	static const char *const commands[] = { "load", "unload", "call", "status", "resume", "lend", "notes", "attach", "detach", "next",
		"recall", "none" };
	for (u32 n = 0; n < NR_COMMANDS; n++)
		printk("  vCPU 0: %s %lu of %lu\n", commands[n], tally.done[n], tally.tried[n]);
	printk("  vCPU 0: invocations ended for reason");
	for (u32 n = 0; n < NR_REASONS; n++)
		if (tally.ended[n])
			printk(" %u: %lu,", n, tally.ended[n]);
	printk(" the longest call took %lu ticks\n", tally.longest);
}

void test_main(void)
{
	static const struct work work = { .once = once, .housekeeping = housekeeping, .lost = nothing };
	if (!is_tandem())
		skip("there are no twins here");
	nr_operations = number_after("operations=", 4000);
	chaos_init();
	whom_init();
	HC2(vm_assist, 0, 2);
	grants_init();
	images_init();
	bystander_init();
	cards_init();
	roots_init();
	printk("  seed %lu, %lu operations, %u vCPUs\n", number_after("seed=", 20060101), nr_operations, board.nr_vcpus);
	/* For places where twins and cards were the hypervisor keeps page tables and room. */
	load_all();
	unload_all();
	audit();
	u64 pages_before = all_pages();
	run_operations(&work);
	stop_vcpus();
	unload_all();
	/* What was given away stays for as long as others' tables have it. */
	roots_end();
	for (u32 v = 1; v < board.nr_vcpus; v++)
		for (u32 i = 0; i < SCRATCH; i++)
			mmu_update(board.of[v].entry_addresses[i], 0);
	for (u64 mfn = 0; mfn < MFNS; mfn++)
		if (was_own(mfn) && !is_own(mfn))
			mmuext(UNPIN, mfn, 0);
	restore();
	refill();
	bystander_check();
	u64 pages_after = all_pages();
	check(pages_after + STILL_USED >= pages_before, "%lu pages were there, %lu are", pages_before, pages_after);
	audit();
	bystander_end();
	cards_end();
	audit();
	printk("  %lu of %lu were accepted\n", operations_accepted(), operations_done());
	say();
	say_cards();
	for (u32 v = 0; v < board.nr_vcpus; v++)
		printk("  vCPU %u: %lu operations, lost %lu times\n", v, board.of[v].operation, board.of[v].restarts);
	check(HC1(xen_version, 0) == 0x40011, "the hypervisor does not answer");
	check(operations_accepted() > operations_done() / 20, "nearly everything was refused");
	for (u32 v = 0; v < board.nr_vcpus; v++)
		check(board.of[v].nr_failures == 0, "vCPU %u has seen what must not be", v);
}
