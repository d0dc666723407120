package sharedmount

import (
	"slices"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
)

// TestTheTableOfMountsIsReadNoFurtherThanNeeded reads tables whose last line is no mount, which is an error if it is
// reached.
func TestTheTableOfMountsIsReadNoFurtherThanNeeded(t *testing.T) {
	const (
		root  = "20 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
		bound = "30 20 8:1 /lib/kubelet /lib/kubelet rw shared:1 - ext4 /dev/sda1 rw\n"
		other = "25 20 0:5 / /lib/other rw - tmpfs tmpfs rw\n"
		wrong = "no mount\n"
	)
	for name, test := range map[string]struct {
		id     int
		table  string
		want   []int
		reads  bool
		inside string
	}{
		"the directory's own mount":              {30, root + other + bound + wrong, []int{20, 30}, false, "/lib/kubelet"},
		"its own mount, before the one below it": {30, other + bound + root + wrong, []int{30, 20}, false, "/lib/kubelet"},
		"a mount above the directory":            {20, root + wrong, []int{20}, false, "/lib/kubelet"},
		"an unknown mount":                       {0, root + bound + wrong, nil, true, "/lib/kubelet"},
		"a mount below which there is none":      {20, root + wrong, nil, true, "/"},
	} {
		t.Run(name, func(t *testing.T) {
			mounts, err := mountinfo.GetMountsFromReader(strings.NewReader(test.table), until(test.id, test.inside))
			if (err != nil) != test.reads {
				t.Fatalf("error %v, want one: %v", err, test.reads)
			}
			var ids []int
			for _, m := range mounts {
				ids = append(ids, m.ID)
			}
			if !slices.Equal(ids, test.want) {
				t.Errorf("read the mounts %v, want %v", ids, test.want)
			}
		})
	}
}
