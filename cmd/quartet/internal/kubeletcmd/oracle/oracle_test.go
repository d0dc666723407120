// Package oracle compares the result of a kubelet's files and flags with that of the kubelet itself: its loader, its
// defaults, its flags and its merge of drop-ins. It is a module of its own, so that the product cannot import the
// kubelet's code.
package oracle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	cliflag "k8s.io/component-base/cli/flag"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // logging.format: json
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/kubernetes/cmd/kubelet/app/options"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
	conversion "k8s.io/kubernetes/pkg/kubelet/apis/config/v1beta1"
	"k8s.io/kubernetes/pkg/kubelet/apis/config/validation"
	"k8s.io/kubernetes/pkg/kubelet/eviction"
	"k8s.io/kubernetes/pkg/kubelet/kubeletconfig/configfiles"
	"k8s.io/kubernetes/pkg/kubelet/sysctl"
	utilfs "k8s.io/kubernetes/pkg/util/filesystem"
	"pgregory.net/rapid"

	"github.com/quartet-node/quartet/cmd/quartet/internal/kubeletcmd"
)

const header = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"

func TestMain(m *testing.M) {
	utilruntime.Must(logsapi.AddFeatureGates(utilfeature.DefaultMutableFeatureGate))
	m.Run()
}

// theirs returns the configuration of a kubelet with this command line: the steps of its NewKubeletCommand, with the
// same functions.
func theirs(ctx context.Context, args []string) (_ map[string]any, err error) {
	defer func() {
		if problem := recover(); problem != nil {
			err = fmt.Errorf("the kubelet panics: %v", problem) // for feature gates that depend on others
		}
	}()
	flags := options.NewKubeletFlags()
	cfg, err := options.NewKubeletConfiguration()
	if err != nil {
		return nil, err
	}
	// Without a file a kubelet would allow everything to everybody. Quartet deliberately does not.
	cfg.Authentication.Anonymous.Enabled, cfg.Authentication.Webhook.Enabled = false, true
	cfg.Authorization.Mode, cfg.ReadOnlyPort = kubeletconfig.KubeletAuthorizationModeWebhook, 0
	if err := parse(flags, cfg, args); err != nil {
		return nil, err
	}
	if flags.KubeletConfigFile != "" {
		if cfg, err = load(ctx, flags.KubeletConfigFile); err != nil {
			return nil, err
		}
	}
	if flags.KubeletDropinConfigDirectory != "" {
		if err := merge(cfg, flags.KubeletDropinConfigDirectory); err != nil {
			return nil, err
		}
	}
	if flags.KubeletConfigFile != "" || flags.KubeletDropinConfigDirectory != "" {
		before := cfg.FeatureGates
		if err := parse(options.NewKubeletFlags(), cfg, args); err != nil {
			return nil, err
		}
		for name, value := range before {
			if _, set := cfg.FeatureGates[name]; !set {
				cfg.FeatureGates[name] = value
			}
		}
	}
	cfg.SeccompDefault = cfg.SeccompDefault || flags.SeccompDefault // as the kubelet passes it to its pods
	if _, err := eviction.ParseThresholdConfig(
		cfg.EnforceNodeAllocatable,
		cfg.EvictionHard,
		cfg.EvictionSoft,
		cfg.EvictionSoftGracePeriod,
		cfg.EvictionMinimumReclaim,
	); err != nil {
		return nil, err
	}
	if _, err := sysctl.NewAllowlist(cfg.AllowedUnsafeSysctls); err != nil {
		return nil, err
	}
	judged := cfg.DeepCopy()
	judged.FailCgroupV1 = false // it depends on the machine
	if err := validation.ValidateKubeletConfiguration(judged, utilfeature.DefaultFeatureGate); err != nil {
		return nil, err
	}
	for _, path := range kubeletconfig.KubeletConfigurationPathRefs(cfg) {
		if *path != "" { // for any working directory of the kubelet
			if *path, err = filepath.Abs(*path); err != nil {
				return nil, err
			}
		}
	}
	versioned := &kubeletconfigv1beta1.KubeletConfiguration{}
	if err := conversion.Convert_config_KubeletConfiguration_To_v1beta1_KubeletConfiguration(
		cfg,
		versioned,
		nil,
	); err != nil {
		return nil, err
	}
	return fields(versioned)
}

func parse(flags *options.KubeletFlags, cfg *kubeletconfig.KubeletConfiguration, args []string) error {
	set := pflag.NewFlagSet("kubelet", pflag.ContinueOnError)
	set.SetNormalizeFunc(cliflag.WordSepNormalizeFunc)
	set.SetOutput(io.Discard)
	flags.AddFlags(set)
	options.AddKubeletConfigFlags(set, cfg)
	return set.Parse(args)
}

// load is the kubelet's loadConfigFile.
func load(ctx context.Context, path string) (*kubeletconfig.KubeletConfiguration, error) {
	loader, err := configfiles.NewFsLoader(&utilfs.DefaultFs{}, path)
	if err != nil {
		return nil, err
	}
	cfg, err := loader.Load(ctx)
	if err != nil {
		return nil, err
	}
	if cfg.EvictionHard == nil {
		cfg.EvictionHard = maps.Clone(eviction.DefaultEvictionHard)
	} else if cfg.MergeDefaultEvictionSettings {
		for signal, threshold := range eviction.DefaultEvictionHard {
			if _, set := cfg.EvictionHard[signal]; !set {
				cfg.EvictionHard[signal] = threshold
			}
		}
	}
	return cfg, nil
}

// merge is the kubelet's mergeKubeletConfigurations.
func merge(cfg *kubeletconfig.KubeletConfiguration, dir string) error {
	versioned := &kubeletconfigv1beta1.KubeletConfiguration{}
	if err := conversion.Convert_config_KubeletConfiguration_To_v1beta1_KubeletConfiguration(
		cfg,
		versioned,
		nil,
	); err != nil {
		return err
	}
	merged, err := json.Marshal(versioned)
	if err != nil {
		return err
	}
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(entry.Name()) != ".conf" {
			return err
		}
		loader, err := configfiles.NewFsLoader(&utilfs.DefaultFs{}, path)
		if err != nil {
			return err
		}
		dropIn, kind, err := loader.LoadIntoJSON()
		if err != nil {
			return err
		}
		if kind == nil || *kind != kubeletconfigv1beta1.SchemeGroupVersion.WithKind("KubeletConfiguration") {
			return errors.New("another kind")
		}
		merged, err = jsonpatch.MergePatch(merged, dropIn)
		return err
	})
	if err != nil {
		return err
	}
	versioned = &kubeletconfigv1beta1.KubeletConfiguration{}
	if err := json.Unmarshal(merged, versioned); err != nil {
		return err
	}
	conversion.SetDefaults_KubeletConfiguration(versioned)
	return conversion.Convert_v1beta1_KubeletConfiguration_To_config_KubeletConfiguration(versioned, cfg, nil)
}

// ours returns the configuration of quartet kubelet.
func ours(args []string) (map[string]any, error) {
	merged, err := kubeletcmd.Configuration(args)
	if err != nil {
		return nil, err
	}
	return fields(&merged.Kubelet)
}

func fields(cfg *kubeletconfigv1beta1.KubeletConfiguration) (map[string]any, error) {
	data, err := json.Marshal(cfg)
	if err != nil {
		return nil, err
	}
	out := map[string]any{}
	return out, json.Unmarshal(data, &out)
}

// differs has the fields whose default differs from the kubelet's, each with its reason. Explicit values of them have
// the same result.
var differs = map[string]string{
	"enableControllerAttachDetach": notActedOn,
	"enableDebugFlagsHandler":      notActedOn,
	"hairpinMode":                  notActedOn,
	"iptablesDropBit":              notActedOn,
	"iptablesMasqueradeBit":        notActedOn,
	"memoryReservationPolicy":      notActedOn,
	"volumePluginDir":              notActedOn,
	"failCgroupV1":                 "cgroup v1 is supported",
	"imageServiceEndpoint":         "the runtime's is written",
	"evictionHard":                 "thresholds are kept without a file, too",
	"apiVersion":                   "the kubelet's has none inside of itself",
	"kind":                         "the kubelet's has none inside of itself",
}

const notActedOn = "it is not acted on"

// flagsOf are flags, and the field that each sets.
var flagsOf = []struct{ flag, field string }{
	{
		"--address=10.0.0.8",
		"address",
	},
	{"--max-pods=70", "maxPods"},
	{"--read-only-port=10256", "readOnlyPort"},
	{"--read-only-port=0", "readOnlyPort"},
	{
		"--cluster-dns=10.0.0.4,10.0.0.5",
		"clusterDNS",
	},
	{"--cluster-dns=10.0.0.6", "clusterDNS"},
	{"--cluster-dns=", "clusterDNS"},
	{"--cluster_domain=other.local", "clusterDomain"},
	{
		"--eviction-hard=memory.available<4Gi,nodefs.available<3%",
		"evictionHard",
	},
	{"--eviction-hard=", "evictionHard"},
	{"--eviction-soft=memory.available<5Gi", "evictionSoft"},
	{
		"--eviction-soft-grace-period=memory.available=2m",
		"evictionSoftGracePeriod",
	},
	{"--eviction-minimum-reclaim=memory.available=1Gi", "evictionMinimumReclaim"},
	{
		"--kube-reserved=cpu=300m",
		"kubeReserved",
	},
	{"--kube-reserved=memory=3Gi,pid=7", "kubeReserved"},
	{"--system-reserved=", "systemReserved"},
	{
		"--feature-gates=EnvFiles=false",
		"featureGates",
	},
	{"--feature-gates=ImageVolume=true,EventedPLEG=false", "featureGates"},
	{"--feature-gates=", "featureGates"},
	{
		"--anonymous-auth=false",
		"authentication",
	},
	{"--anonymous-auth", "authentication"},
	{"--authentication-token-webhook", "authentication"},
	{"--client-ca-file=/x/ca.crt", "authentication"},
	{
		"--authorization-mode=Webhook",
		"authorization",
	},
	{"--authorization-webhook-cache-unauthorized-ttl=9s", "authorization"},
	{
		"--node-status-update-frequency=15s",
		"nodeStatusUpdateFrequency",
	},
	{"--serialize-image-pulls=false", "serializeImagePulls"},
	{"--serialize-image-pulls", "serializeImagePulls"},
	{
		"--cgroups-per-qos=false",
		"cgroupsPerQOS",
	},
	{"--enforce-node-allocatable=", "enforceNodeAllocatable"},
	{"--enforce-node-allocatable=none", "enforceNodeAllocatable"},
	{
		"--pod-manifest-path=/x/manifests",
		"staticPodPath",
	},
	{"--pod-manifest-path=", "staticPodPath"},
	{"--resolv-conf=", "resolvConf"},
	{"--resolv-conf=/x/resolv.conf", "resolvConf"},
	{
		"--container-runtime-endpoint=unix:///run/c.sock",
		"containerRuntimeEndpoint",
	},
	{"--image-service-endpoint=unix:///run/d.sock", "imageServiceEndpoint"},
	{
		"--register-with-taints=c=d:NoExecute,e:NoSchedule",
		"registerWithTaints",
	},
	{"--register-with-taints=", "registerWithTaints"},
	{"--register-node=false", "registerNode"},
	{
		"--manifest-url-header=A:1,B:2,A:3",
		"staticPodURLHeader",
	},
	{"--allowed-unsafe-sysctls=kernel.msg*", "allowedUnsafeSysctls"},
	{
		"-v=5",
		"logging",
	},
	{"--v=0", "logging"},
	{"--logging-format=json", "logging"},
	{"--log-flush-frequency=2s", "logging"},
	{
		"--fail-swap-on=false",
		"failSwapOn",
	},
	{"--fail-cgroupv1", "failCgroupV1"},
	{"--qos-reserved=memory=10%", "qosReserved"},
	{"--sync-frequency=3s", "syncFrequency"},
	{
		"--reserved-memory=0:memory=2Gi;1:memory=1Gi",
		"reservedMemory",
	},
	{"--topology-manager-policy=restricted", "topologyManagerPolicy"},
	{"--pod-max-pids=9", "podPidsLimit"},
	{
		"--healthz-port=0",
		"healthzPort",
	},
	{"--healthz-bind-address=::1", "healthzBindAddress"},
	{"--event-qps=0", "eventRecordQPS"},
	{"--registry-qps=0", "registryPullQPS"},
	{
		"--oom-score-adj=5",
		"oomScoreAdj",
	},
	{"--make-iptables-util-chains=false", "makeIPTablesUtilChains"},
	{"--image-gc-high-threshold=95", "imageGCHighThresholdPercent"},
	{
		"--container-log-max-size=2Mi",
		"containerLogMaxSize",
	},
	{"--tls-cipher-suites=TLS_AES_128_GCM_SHA256,TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "tlsCipherSuites"},
	{"--kube-api-qps=0", "kubeAPIQPS"},
	{
		"--provider-id=x://y",
		"providerID",
	},
	{"--cpu-cfs-quota=false", "cpuCFSQuota"},
	{"--pod-cidr=10.1.0.0/24", "podCIDR"},
	{"--seccomp-default", "seccompDefault"},
	{
		"--cpu-manager-policy-options=full-pcpus-only=true",
		"cpuManagerPolicyOptions",
	},
	{"--volume-stats-agg-period=-1s", "volumeStatsAggPeriod"},
}

// TestSourcesAmountToWhatTheyAmountToForAKubelet, for any file, drop-ins and flags, together or alone.
func TestSourcesAmountToWhatTheyAmountToForAKubelet(t *testing.T) {
	base := t.TempDir()
	refused, n := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		dir := filepath.Join(base, fmt.Sprint(n))
		args, set := commandLine(t, dir)
		want, theirErr := theirs(context.Background(), args)
		got, ourErr := ours(args)
		if theirErr != nil || ourErr != nil {
			refused++
			// Quartet then enforces nothing.
			withoutCgroups := theirErr != nil &&
				strings.Contains(theirErr.Error(), `cgroupsPerQOS (--cgroups-per-qos) must be set to true when "pods"`)
			if (theirErr != nil) != (ourErr != nil) && !withoutCgroups {
				t.Fatalf("%v: the kubelet says %v, and Quartet %v", args, theirErr, ourErr)
			}
			return
		}
		for field := range differs {
			if !set[field] {
				delete(want, field)
				delete(got, field)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("%v: (-kubelet +ours):\n%s", args, diff)
		}
	})
	t.Logf("%d of %d were refused", refused, n)
}

// commandLine draws a command line, and writes its files. It returns the fields that any of them sets.
func commandLine(t *rapid.T, dir string) (args []string, set map[string]bool) {
	set = map[string]bool{}
	write := func(name string) string {
		var lines strings.Builder
		lines.WriteString(header)
		there := map[string]bool{}
		for _, s := range rapid.SliceOfN(rapid.SampledFrom(snippets), 0, 6).Draw(t, name) {
			if !there[s.field] {
				there[s.field] = true
				set[s.field] = set[s.field] || !strings.HasSuffix(name, ".bak")
				fmt.Fprintf(&lines, "%s: %s\n", s.field, s.value)
			}
		}
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(lines.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	if rapid.Bool().Draw(t, "has a file") {
		args = append(args, "--config="+write("kubelet.yaml"))
	}
	if rapid.Bool().Draw(t, "has drop-ins") {
		args = append(args, "--config-dir="+filepath.Join(dir, "conf.d"))
		for _, name := range []string{"conf.d/20.conf", "conf.d/10.conf", "conf.d/15/99.conf", "conf.d/30.conf.bak"} {
			write(name)
		}
	}
	for _, flag := range rapid.SliceOfN(rapid.SampledFrom(flagsOf), 0, 5).Draw(t, "flags") {
		args = append(args, flag.flag)
		set[flag.field] = true
	}
	return args, set
}
