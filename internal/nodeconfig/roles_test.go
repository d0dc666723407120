package nodeconfig

import (
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quartet-node/quartet/internal/rights"
)

func TestUsersOfRoles(t *testing.T) {
	one := []int{10241}
	for _, tc := range []struct {
		service Service
		args    []string
		want    rights.Users
		metrics []int
	}{
		{PLEG, nil, rights.Users{}, nil},
		{
			PLEG, []string{"--allowed-uids", " 10241,root,,10241 "},
			rights.Users{
				rights.Observe: {0, 10241}, rights.Apply: {0, 10241}, rights.Evict: {0, 10241}, rights.Admin: {0, 10241},
			},
			[]int{0, 10241},
		},
		{NodeStatus, []string{"--observe-uids=10241"}, rights.Users{rights.Observe: one}, one},
		{SyncLoop, []string{"--evict-uids=10241"}, rights.Users{rights.Evict: one}, one},
		{SyncLoop, []string{"--apply-uids=10241"}, rights.Users{rights.Apply: one}, one},
		{PLEG, []string{"--admin-uids=10241"}, rights.Users{rights.Admin: one}, one},
		{NodeStatus, []string{"--admin-uids=10241"}, rights.Users{rights.Admin: one}, one},
		{ConfigMux, []string{"--secret-uids=10241"}, rights.Users{rights.Secrets: one}, nil},
		{
			ConfigMux, []string{"--secret-uids=10241", "--observe-uids=10244", "--apply-uids=10244,1"},
			rights.Users{rights.Secrets: one, rights.Observe: {10244}, rights.Apply: {1, 10244}}, []int{1, 10244},
		},
	} {
		cfg := parse(t, tc.service, tc.args...)
		if diff := cmp.Diff(tc.want, cfg.Users); diff != "" {
			t.Errorf("%s %q (-want +got):\n%s", tc.service, tc.args, diff)
		}
		if got := cfg.MetricsUIDs(); !slices.Equal(got, tc.metrics) {
			t.Errorf("%s %q: %v may read the metrics, want %v", tc.service, tc.args, got, tc.metrics)
		}
	}
}

// TestAServiceHasFlagsOnlyForItsRoles: each flag has an effect.
func TestAServiceHasFlagsOnlyForItsRoles(t *testing.T) {
	for service, flags := range map[Service][]string{
		ConfigMux: {"evict"}, PLEG: {"apply", "secret", "evict"}, SyncLoop: {"secret"},
		NodeStatus: {"apply", "secret", "evict"},
	} {
		for _, flag := range flags {
			if _, err := Parse(service, []string{"--" + flag + "-uids=1"}, io.Discard); err == nil {
				t.Errorf("%s takes --%s-uids", service, flag)
			}
		}
	}
	for flag, value := range map[string]string{
		"secret-uids": "no-such-user", "observe-uids": "1,-1", "allowed-uids": "4294967295", "admin-uids": "1;2",
	} {
		_, err := Parse(ConfigMux, []string{"--" + flag, value}, io.Discard)
		if err == nil || !strings.Contains(err.Error(), "--"+flag+": ") ||
			!strings.Contains(err.Error(), "must be the number of a user") {
			t.Errorf("--%s=%s: %v", flag, value, err)
		}
	}
}
