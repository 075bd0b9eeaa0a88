#!/bin/sh
# Loads a module of this guest, by its name or an alias, after what it needs. The kernel calls
# this too.
for word; do
    case $word in -*) ;; *) break ;; esac
done
line=$(grep "^$(echo "$word" | tr - _) " /modules/map | head -n 1) || exit 1
for module in ${line#* }; do
    [ -d "/sys/module/$module" ] || insmod "/modules/$module.ko" || exit 1
done
