#!/bin/busybox sh
# Process 1 of a test's guest: mounts, loads the modules, then leaves everything to the harness.
export PATH=/bin HOME=/root
/bin/busybox --install -s /bin
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
mkdir -p /dev/shm
mount -t tmpfs shm /dev/shm

for module in /modules/*; do
    insmod "$module" || echo "init: cannot load $module"
done

ip link set lo up
if [ -e /sys/class/net/eth0 ]; then
    # The addresses of QEMU's user-mode network.
    ip link set eth0 up
    ip address add 10.0.2.15/24 dev eth0
    ip route add default via 10.0.2.2
fi

ferry-vm-agent
echo "init: the agent ended with status $?"
poweroff -f
