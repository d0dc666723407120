package kubeletcmd

import (
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/quartet-node/quartet/internal/nodeconfig"
)

// TestEveryFlagOfAFieldHasTheField, so that no flag sets an unknown field.
func TestEveryFlagOfAFieldHasTheField(t *testing.T) {
	for name, flag := range newOptions().fields {
		at := reflect.TypeFor[kubeletconfigv1beta1.KubeletConfiguration]()
		for part := range strings.SplitSeq(flag.field, ".") {
			var ok bool
			if at, ok = below(at, part); !ok {
				t.Errorf("--%s: a KubeletConfiguration has no field %s: %s is not there", name, flag.field, part)
				break
			}
		}
	}
}

// below returns the type of a field by its name in JSON.
func below(t reflect.Type, name string) (reflect.Type, bool) {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return nil, false
	}
	for i := range t.NumField() {
		field := t.Field(i)
		tag, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if tag == name {
			return field.Type, true
		}
		if found, ok := below(field.Type, name); field.Anonymous && ok {
			return found, true
		}
	}
	return nil, false
}

// TestWhatFlagsSet has a flag of each kind.
func TestWhatFlagsSet(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		want map[string]any
	}{
		"bool alone":             {[]string{"--fail-swap-on"}, map[string]any{"failSwapOn": true}},
		"bool":                   {[]string{"--fail-swap-on=false"}, map[string]any{"failSwapOn": false}},
		"number":                 {[]string{"--max-pods", "7"}, map[string]any{"maxPods": int64(7)}},
		"duration":               {[]string{"--sync-frequency=90s"}, map[string]any{"syncFrequency": "1m30s"}},
		"list":                   {[]string{"--cluster-dns=10.0.0.1,10.0.0.2", "--cluster-dns=10.0.0.3"}, map[string]any{"clusterDNS": []any{"10.0.0.1", "10.0.0.2", "10.0.0.3"}}},
		"empty list":             {[]string{"--enforce-node-allocatable="}, map[string]any{"enforceNodeAllocatable": []any{}}},
		"mapping":                {[]string{"--kube-reserved=cpu=1,memory=2Gi", "--kube-reserved=pid=9"}, map[string]any{"kubeReserved": map[string]any{"cpu": "1", "memory": "2Gi", "pid": "9"}}},
		"thresholds":             {[]string{"--eviction-hard=memory.available<1Gi, nodefs.available<5%"}, map[string]any{"evictionHard": map[string]any{"memory.available": "1Gi", "nodefs.available": "5%"}}},
		"no thresholds":          {[]string{"--eviction-hard="}, map[string]any{"evictionHard": map[string]any{}}},
		"feature gates":          {[]string{"--feature-gates=A=true,B=false"}, map[string]any{"featureGates": map[string]any{"A": true, "B": false}}},
		"underscores":            {[]string{"--max_pods=7"}, map[string]any{"maxPods": int64(7)}},
		"verbosity":              {[]string{"-v", "4"}, map[string]any{"logging.verbosity": uint64(4)}},
		"verbosity, two dashes":  {[]string{"--v=4"}, map[string]any{"logging.verbosity": uint64(4)}},
		"verbosity of modules":   {[]string{"--vmodule=a*=3,b=5"}, map[string]any{"logging.vmodule": []any{map[string]any{"filePattern": "a*", "verbosity": uint64(3)}, map[string]any{"filePattern": "b", "verbosity": uint64(5)}}}},
		"an address":             {[]string{"--healthz-bind-address=::"}, map[string]any{"healthzBindAddress": "::"}},
		"no address":             {[]string{"--address="}, map[string]any{}},
		"headers":                {[]string{"--manifest-url-header=A:1,B:2,A:3"}, map[string]any{"staticPodURLHeader": map[string]any{"A": []any{"1", "3"}, "B": []any{"2"}}}},
		"an option with a comma": {[]string{"--cpu-manager-policy-options=a=b,c"}, map[string]any{"cpuManagerPolicyOptions": map[string]any{"a": "b,c"}}},
		"taints": {[]string{"--register-with-taints=a=b:NoSchedule,c:NoExecute"}, map[string]any{"registerWithTaints": []any{
			map[string]any{"key": "a", "value": "b", "effect": "NoSchedule"}, map[string]any{"key": "c", "effect": "NoExecute"},
		}}},
		"reserved memory": {[]string{"--reserved-memory=0:memory=1Gi,hugepages-2Mi=64Mi;1:memory=2Gi"}, map[string]any{"reservedMemory": []any{
			map[string]any{"numaNode": int64(0), "limits": map[string]any{"memory": "1Gi", "hugepages-2Mi": "64Mi"}},
			map[string]any{"numaNode": int64(1), "limits": map[string]any{"memory": "2Gi"}},
		}}},
	} {
		t.Run(name, func(t *testing.T) {
			opts := newOptions()
			if err := opts.parse(test.args); err != nil {
				t.Fatal(err)
			}
			got := map[string]any{}
			for _, setting := range opts.settings() {
				got[setting.Field] = setting.Value
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if _, errs := nodeconfig.Merge(nodeconfig.Sources{WorkDir: "/", Settings: opts.settings()}); len(errs) > 0 &&
				name != "feature gates" {
				t.Errorf("the configuration cannot have it: %v", errs)
			}
		})
	}
}

func TestProblemsOfAFlagAreReported(t *testing.T) {
	for _, test := range []struct{ arg, want string }{
		{"--max-pods=many", `invalid argument "many" for "--max-pods" flag: invalid syntax`},
		{"--feature-gates=A=perhaps", `A: "perhaps": must be true or false`},
		{"--eviction-hard=memory.available=1Gi", `"memory.available=1Gi" must be KEY<VALUE`},
		{"--register-with-taints=a=b:Never", "must be KEY=VALUE:EFFECT"},
		{"--address=here", `"here" is not an IP address`},
		{"--reserved-memory=x:memory=1Gi", "must be NODE:TYPE=AMOUNT"},
		{"--version=new", "must be true, false or raw"},
		{"--container-runtime=remote", "unknown flag: --container-runtime: 'quartet kubelet --help' lists the flags"},
	} {
		if err := newOptions().parse([]string{test.arg}); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", test.arg, err, test.want)
		}
	}
}

func TestFlagsWithoutEffectAreNamed(t *testing.T) {
	opts := newOptions()
	if err := opts.parse(
		[]string{"--runtime-cgroups=/x", "--housekeeping-interval=1s", "--pod-infra-container-image=x", "--max-pods=3"},
	); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"--housekeeping-interval", "--runtime-cgroups"}, opts.ineffective()); diff != "" {
		t.Errorf("ineffective() differs (-want +got):\n%s", diff)
	}
}

// TestTheHelpHasEveryFlag once and in a group.
func TestTheHelpHasEveryFlag(t *testing.T) {
	opts := newOptions()
	usage := opts.usage()
	opts.set.VisitAll(func(flag *pflag.Flag) {
		if n := strings.Count(
			usage,
			"--"+flag.Name+" ",
		) + strings.Count(
			usage,
			"--"+flag.Name+"[",
		) + strings.Count(
			usage,
			"--"+flag.Name+"\n",
		); n < 1 {
			t.Errorf("--%s is there %d times", flag.Name, n)
		}
	})
}
