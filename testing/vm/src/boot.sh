#!/bin/sh
# The first process of a guest with a root of its own: unpacks that root, gives it the kernel's modules, and becomes its
# init. The init prints the job's end itself, as init.sh does.
export PATH=/usr/bin
mount -t proc proc /proc
mount -t tmpfs -o size=90%,mode=755 root /root
tar -xf /root.tar -C /root && rm /root.tar || { echo "weir-vm: cannot unpack the root"; poweroff -f; }
modules=/usr/lib/modules/$(uname -r)
mkdir -p "/root$modules"
mv /modules/*.ko "/root$modules/"
chroot /root /usr/sbin/depmod || { echo "weir-vm: the root has no depmod (Debian's package kmod)"; poweroff -f; }
echo "weir-vm: ready, kernel $(uname -r), $(cut -d' ' -f1 /proc/uptime) s"
umount /proc
exec switch_root /root /sbin/init
