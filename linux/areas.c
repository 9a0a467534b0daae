// SPDX-License-Identifier: GPL-2.0
/*
 * Per-CPU areas for twins: those of CPUs that this domain may have but has not. An area is there
 * for each CPU that is possible; while a twin uses it, its CPU does not come up.
 */
#include <linux/cpu.h>
#include <linux/cpuhotplug.h>
#include <linux/cpumask.h>
#include <linux/percpu.h>
#include "internal.h"

static enum cpuhp_state hotplug_state;
/* Under the lock of CPU hotplug; users under rtnl_lock. */
static unsigned int first_cpu, nr_areas, nr_users;

static int keep_down(unsigned int cpu)
{
	return nr_areas && cpu >= first_cpu && cpu < first_cpu + nr_areas ? -EBUSY : 0;
}

static u64 distance(unsigned int cpu)
{
	return __per_cpu_offset[cpu + 1] - __per_cpu_offset[cpu];
}

/* The longest row of such areas at equal distances. */
static void find_areas(void)
{
	unsigned int cpu, start = 0, len = 0;

	nr_areas = 0;
	for (cpu = 0; cpu < nr_cpu_ids; cpu++) {
		if (!cpu_possible(cpu) || cpu_online(cpu)) {
			len = 0;
			continue;
		}
		if (len >= 2 && distance(cpu - 1) != distance(start)) {
			start = cpu - 1;
			len = 1;
		}
		if (!len++)
			start = cpu;
		if (len > nr_areas) {
			first_cpu = start;
			nr_areas = len;
		}
	}
}

/* Fills in the areas of a load; they are the same for all twins. */
int tandem_areas_get(struct twin_load *load)
{
	cpus_read_lock();
	if (!nr_users)
		find_areas();
	load->areas = nr_areas;
	load->percpu = nr_areas ? __per_cpu_offset[first_cpu] : 0;
	load->percpu_stride = nr_areas > 1 ? distance(first_cpu) : 0;
	nr_users++;
	cpus_read_unlock();
	return 0;
}

void tandem_areas_put(void)
{
	cpus_read_lock();
	if (!--nr_users)
		nr_areas = 0;
	cpus_read_unlock();
}

int tandem_areas_init(void)
{
	int state = cpuhp_setup_state_nocalls(CPUHP_BP_PREPARE_DYN, "tandem:areas", keep_down,
					      NULL);

	if (state < 0)
		return state;
	hotplug_state = state;
	return 0;
}

void tandem_areas_exit(void)
{
	cpuhp_remove_state_nocalls(hotplug_state);
}
