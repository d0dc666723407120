package selinux

import (
	"testing"

	"github.com/moby/sys/mountinfo"
)

func TestFilesHaveLabelsByTheirMount(t *testing.T) {
	root := &mountinfo.Info{Mountpoint: "/", Options: "rw,relatime", VFSOptions: "rw,seclabel"}
	for name, test := range map[string]struct {
		mounts []*mountinfo.Info
		want   bool
	}{
		"none":             {},
		"the root":         {mounts: []*mountinfo.Info{root}, want: true},
		"option":           {mounts: []*mountinfo.Info{{Mountpoint: "/", Options: "rw,seclabel"}}, want: true},
		"NFS below it":     {mounts: []*mountinfo.Info{{Mountpoint: "/data", VFSOptions: "rw"}, root}},
		"mounted twice":    {mounts: []*mountinfo.Info{root, {Mountpoint: "/"}}},
		"another option":   {mounts: []*mountinfo.Info{{Mountpoint: "/", Options: "noseclabel"}}},
		"the one in front": {mounts: []*mountinfo.Info{{Mountpoint: "/data"}, root, {Mountpoint: "/data", Options: "seclabel"}}, want: true},
	} {
		if got := hasLabels(test.mounts); got != test.want {
			t.Errorf("%s: %t, want %t", name, got, test.want)
		}
	}
}
