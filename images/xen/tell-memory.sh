#!/bin/sh
# tell-memory.sh: for a driver domain: tells domain 0 how much memory it has left (MemAvailable, in KiB) by data/available-kib below its own directory in
# xenstore. It looks each five seconds, which is one file that is read, and writes only what differs from what it has told by a 32nd and more.
# With --once it looks once.
file=${MEMINFO:-/proc/meminfo}
told=0
while :; do
	while read -r key kib unit; do
		[ "$key" != MemAvailable: ] || break
	done < "$file"
	[ "$key" = MemAvailable: ] || { echo "tell-memory.sh: $file does not say MemAvailable" >&2; exit 1; }
	differs=$((kib > told ? kib - told : told - kib))
	if [ $((differs * 32)) -ge $((told > 32 ? told : 32)) ]; then
		! xenstore-write data/available-kib "$kib" || told=$kib
	fi
	[ "$1" != --once ] || exit 0
	sleep 5
done
