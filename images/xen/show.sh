# show.sh MIB: two guests beside dom0 with stock devices, for `./tandem run`; each claim is a report of its own.
mib=${1:-8}
guest() { # guest NAME ADDRESS LINE...
	local name=$1 address=$2
	shift 2
	config $name "vif=[\"mac=00:16:3e:00:00:0$address,bridge=xenbr0\"]" "$@"
	if ! boot $name > /tmp/boot.out 2>&1; then
		say "show FAIL $name does not boot: $(tail -n 3 /tmp/boot.out | tr '\n' '|')"
		return 1
	fi
	in_guest $name 30 "job_address $address; mkdir -p /www; echo page of $name > /www/index.html; httpd -h /www" || {
		say "show FAIL $name has no network"
		return 1
	}
	say "show guest name=$name domid=$(xl domid $name) vcpus=$(in_guest $name 10 nproc) kernel=$(in_guest $name 10 uname -r)"
}
page() { # page NAME ADDRESS
	say "show page by=$1 from=$2 text=$(in_guest $1 30 "wget -q -O - http://$2/ | tr ' ' '_'")"
}
result() { # result NAME COMMAND...: what a test tool in the guest says
	local name=$1
	shift
	say "show $name $(in_guest $name $((90 + mib * 4)) "$*")"
}

modprobe nvme
guest alice 3 || exit
guest bob 4 'vcpus=2' 'disk=["format=raw,vdev=xvda,access=rw,target=/dev/nvme1n1"]' || exit
page alice 10.9.0.1
page bob 10.9.0.1
page alice 10.9.0.4
page bob 10.9.0.3
result alice nettest eth0 10.9.0.1 $mib 64
in_guest alice 10 '(tcptest serve > /dev/null 2>&1 &)'
result bob tcptest put 10.9.0.3 $mib
result bob tcptest get 10.9.0.3 $mib
in_guest bob 20 'modprobe xen-blkfront; wait_for 10 test -b /dev/xvda' || say "show FAIL bob has no disk"
result bob disktest /dev/xvda $mib 2
timeout 60 xl shutdown -w alice > /dev/null
gone alice || say "show FAIL alice does not shut down"
xl destroy bob
gone bob || say "show FAIL bob cannot be destroyed"
say "show over domains=$(xl list | tail -n +2 | wc -l)"
