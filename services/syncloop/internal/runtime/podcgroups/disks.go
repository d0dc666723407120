package podcgroups

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// DiskIO holds the reads and writes of a disk.
type DiskIO struct {
	// Device is the path of the disk, for example /dev/sda, or its numbers, for example 8:0, if it has no name.
	Device string
	// Major and Minor are its numbers.
	Major, Minor string
	// Bytes and Operations count by operation, in the kernel's words for cgroup v1: Read and Write, and with cgroup v1
	// also Sync, Async, Discard and Total.
	Bytes, Operations map[string]uint64
}

// disksOfV1 reads the counters of disks, including those of the cgroups below where the kernel counts them. The first
// files count for all disk schedulers, but on Linux 6.10 and later only for disks with a limit.
func disksOfV1(dir files) []DiskIO {
	for _, form := range [][2]string{
		{"blkio.throttle.", "_recursive"}, {"blkio.throttle.", ""}, {"blkio.bfq.", "_recursive"},
	} {
		bytes := dir.text(form[0] + "io_service_bytes" + form[1])
		operations := dir.text(form[0] + "io_serviced" + form[1])
		if disks := parseBlkio(bytes, operations); len(disks) > 0 {
			return disks
		}
	}
	return nil
}

// parseBlkio parses lines of bytes and of operations, for example "8:0 Read 4096".
func parseBlkio(bytes, operations string) []DiskIO {
	var disks disksByNumber
	each := func(content string, of func(*DiskIO) map[string]uint64) {
		for line := range strings.Lines(content) {
			words := strings.Fields(line)
			if len(words) != 3 {
				continue // the total of all disks
			}
			if n, err := strconv.ParseUint(words[2], 10, 64); err == nil {
				of(disks.disk(words[0]))[words[1]] = n
			}
		}
	}
	each(bytes, func(d *DiskIO) map[string]uint64 { return d.Bytes })
	each(operations, func(d *DiskIO) map[string]uint64 { return d.Operations })
	return disks.disks
}

// parseIOStat parses lines like "8:0 rbytes=4096 wbytes=0 rios=1 wios=0 dbytes=0 dios=0".
func parseIOStat(content string) []DiskIO {
	var disks disksByNumber
	for line := range strings.Lines(content) {
		words := strings.Fields(line)
		if len(words) < 2 {
			continue
		}
		for _, word := range words[1:] {
			key, value, _ := strings.Cut(word, "=")
			n, err := strconv.ParseUint(value, 10, 64)
			if err != nil {
				continue
			}
			switch disk := disks.disk(words[0]); key {
			case "rbytes":
				disk.Bytes["Read"] = n
			case "wbytes":
				disk.Bytes["Write"] = n
			case "rios":
				disk.Operations["Read"] = n
			case "wios":
				disk.Operations["Write"] = n
			}
		}
	}
	return disks.disks
}

// disksByNumber holds disks by their numbers, in the order of their first occurrence.
type disksByNumber struct {
	numbers []string
	disks   []DiskIO
}

func (d *disksByNumber) disk(number string) *DiskIO {
	for i, known := range d.numbers {
		if known == number {
			return &d.disks[i]
		}
	}
	major, minor, _ := strings.Cut(number, ":")
	d.numbers = append(d.numbers, number)
	d.disks = append(d.disks, DiskIO{
		Device: deviceOf(number), Major: major, Minor: minor, Bytes: map[string]uint64{}, Operations: map[string]uint64{},
	})
	return &d.disks[len(d.disks)-1]
}

// deviceOf returns the path of the disk with the number.
func deviceOf(number string) string {
	at, err := os.Readlink("/sys/dev/block/" + number)
	if err != nil {
		return number
	}
	return "/dev/" + filepath.Base(at)
}
