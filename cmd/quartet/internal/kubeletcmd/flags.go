package kubeletcmd

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/quartet-node/quartet/internal/nodeconfig"
)

// The kubelet's default directories.
const (
	defaultRootDir = "/var/lib/kubelet"
	defaultCertDir = "/var/lib/kubelet/pki"
)

// options holds the flags as given.
type options struct {
	config, configDir               string
	kubeconfig, bootstrapKubeconfig string
	hostnameOverride, nodeIP        string
	nodeLabels                      labels
	cloudProvider                   string
	rootDir, certDir, stateDir      string
	allowedUIDs                     string
	credentialProviders             nodeconfig.CredentialProviderFlags
	hostPrivileges                  nodeconfig.PrivilegeFlags
	allowUnauthenticatedAPI         bool
	version                         versionFlag
	help                            bool
	// fields maps the names of flags to the fields that they set.
	fields map[string]givenField
	// groups are the parts of the help; set has all flags.
	groups []group
	set    *pflag.FlagSet
}

// givenField is a flag with its value.
type givenField struct {
	fieldFlag
	given *fieldValue
}

// group is a part of the help.
type group struct {
	title string
	set   *pflag.FlagSet
}

// newOptions returns the flags with their defaults.
func newOptions() *options {
	o := &options{nodeLabels: labels{}, fields: map[string]givenField{}}
	o.set = newSet()
	o.group("Configuration and cluster", func(flags *pflag.FlagSet) {
		flags.StringVar(
			&o.config,
			"config",
			"",
			"`file` with a KubeletConfiguration (kubelet.config.k8s.io/v1beta1); without it every field has its default",
		)
		flags.StringVar(
			&o.configDir,
			"config-dir",
			"",
			"`directory` of drop-ins: files NAME.conf, those of subdirectories too, that are merged over --config in lexical order",
		)
		flags.StringVar(
			&o.kubeconfig,
			"kubeconfig",
			"",
			"`file` that says how to reach the API server; without it the node is standalone",
		)
		flags.StringVar(
			&o.bootstrapKubeconfig,
			"bootstrap-kubeconfig",
			"",
			"`file` to reach the API server with while the node has no valid --kubeconfig, which is written then",
		)
		flags.StringVar(&o.certDir, "cert-dir", defaultCertDir, "`directory` of the node's certificates")
	})
	o.group("Node", func(flags *pflag.FlagSet) {
		flags.StringVar(
			&o.hostnameOverride,
			"hostname-override",
			"",
			"`name` of the node; the name of this machine when empty",
		)
		flags.StringVar(
			&o.nodeIP,
			"node-ip",
			"",
			"`address` that the node reports, or one of IPv4 and one of IPv6, separated by a comma; chosen when empty",
		)
		flags.Var(o.nodeLabels, "node-labels", "`labels` for the node, KEY=VALUE, separated by commas")
		flags.StringVar(
			&o.cloudProvider,
			"cloud-provider",
			"",
			"external when an external cloud `provider` initializes the Node and sets its addresses",
		)
		o.addFields(flags, nodeFields())
	})
	o.group("Directories and container runtime", func(flags *pflag.FlagSet) {
		flags.StringVar(&o.rootDir, "root-dir", defaultRootDir, "`directory` of the pods' volumes and files")
		o.addFields(flags, runtimeFields())
		o.credentialProviders.Add(flags)
		flags.String(
			"pod-infra-container-image",
			"",
			"accepted for compatibility; the container runtime's configuration sets the `image` of sandboxes",
		)
	})
	o.group("Logs and help", func(flags *pflag.FlagSet) {
		o.addFields(flags, []fieldFlag{{
			name: "v", shorthand: "v", field: "logging.verbosity", value: uint32Number,
			usage: "log `verbosity`: 0 is what an operator needs, 4 and more is for debugging",
		}})
		flags.Var(&o.version, "version", "print the version of Kubernetes and exit; raw prints the version of Quartet too")
		flags.Lookup("version").NoOptDefVal = "true"
		flags.BoolVarP(&o.help, "help", "h", false, "print this")
	})
	o.group("Quartet's own", func(flags *pflag.FlagSet) {
		flags.StringVar(
			&o.stateDir,
			"state-dir",
			"",
			"`directory` of the state and the sockets of the four processes (default: quartet in --root-dir)",
		)
		flags.StringVar(
			&o.allowedUIDs,
			"allowed-uids",
			"",
			"`uids` of users, besides root, that may connect to the sockets, separated by commas",
		)
		nodeconfig.AddAllowUnauthenticatedAPI(flags, &o.allowUnauthenticatedAPI)
		o.hostPrivileges.Add(flags)
	})
	o.group("Fields of the configuration file; a flag overrides the file and its drop-ins", func(flags *pflag.FlagSet) {
		o.addFields(flags, fieldFlags())
	})
	o.group("Accepted for compatibility, with a warning that they have no effect", addIneffective)
	return o
}

// newSet returns an empty flag set that accepts underscores for dashes, as the kubelet does.
func newSet() *pflag.FlagSet {
	set := pflag.NewFlagSet("kubelet", pflag.ContinueOnError)
	set.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		return pflag.NormalizedName(strings.ReplaceAll(name, "_", "-"))
	})
	set.SortFlags = false
	set.Usage = func() {}
	return set
}

func (o *options) group(title string, add func(*pflag.FlagSet)) {
	set := newSet()
	add(set)
	o.groups = append(o.groups, group{title: title, set: set})
	o.set.AddFlagSet(set)
}

// addFields adds flags that set fields.
func (o *options) addFields(flags *pflag.FlagSet, fields []fieldFlag) {
	for _, flag := range fields {
		value := flag.value()
		o.fields[flag.name] = givenField{fieldFlag: flag, given: value}
		usage := flag.field
		if flag.usage != "" {
			usage = flag.usage + " (" + flag.field + ")"
		}
		added := flags.VarPF(value, flag.name, flag.shorthand, usage)
		if value.kind == "bool" {
			added.NoOptDefVal = "true"
		}
	}
}

// addIneffective adds the flags that Quartet accepts without an effect.
func addIneffective(flags *pflag.FlagSet) {
	flags.Bool("exit-on-lock-contention", false, "Quartet locks its state directory, and a second process exits")
	flags.Bool(
		"experimental-allocatable-ignore-eviction",
		false,
		"eviction thresholds are always subtracted from the allocatable resources",
	)
	flags.String("experimental-mounter-path", "", "mounts are made by mount")
	flags.Duration("housekeeping-interval", 0, "usage is read on request")
	flags.String("lock-file", "", "Quartet locks its state directory")
	flags.Int32("maximum-dead-containers", -1, "no such limit")
	flags.Int32("maximum-dead-containers-per-container", 1, "one dead container is kept of each")
	flags.Duration("minimum-container-ttl-duration", 0, "dead containers are removed at any age")
	flags.String("runtime-cgroups", "", "the cgroup of the container runtime is not changed")
}

// parse reads the arguments.
func (o *options) parse(args []string) error {
	if err := o.set.Parse(args); err != nil {
		return fmt.Errorf("%w: 'quartet kubelet --help' lists the flags", err)
	}
	if words := o.set.Args(); len(words) > 0 {
		return fmt.Errorf("unexpected argument %q: there are only flags, 'quartet kubelet --help' lists them", words[0])
	}
	return nil
}

// ineffective returns the given flags without an effect, sorted by name.
func (o *options) ineffective() []string {
	var names []string
	o.groups[len(o.groups)-1].set.VisitAll(func(flag *pflag.Flag) {
		if flag.Changed {
			names = append(names, "--"+flag.Name)
		}
	})
	return names
}

// settings returns the fields that flags set, sorted by flag.
func (o *options) settings() []nodeconfig.Setting {
	var out []nodeconfig.Setting
	for _, name := range slices.Sorted(maps.Keys(o.fields)) {
		flag := o.fields[name]
		if flag.given.value == nil {
			continue
		}
		out = append(out, nodeconfig.Setting{Origin: "--" + name, Field: flag.field, Value: flag.given.value, Add: flag.adds})
	}
	return out
}

// usage returns the help.
func (o *options) usage() string {
	var b strings.Builder
	b.WriteString(longHelp)
	b.WriteString("\n\nUsage:\n  quartet kubelet [flags]\n  kubelet [flags]\n")
	for _, group := range o.groups {
		fmt.Fprintf(&b, "\n%s:\n%s", group.title, group.set.FlagUsagesWrapped(120))
	}
	return b.String()
}

// labels holds --node-labels as the kubelet parses them: a label without a value has an empty one.
type labels map[string]string

func (l labels) String() string {
	var out []string
	for _, key := range slices.Sorted(maps.Keys(l)) {
		out = append(out, key+"="+l[key])
	}
	return strings.Join(out, ",")
}

func (l labels) Type() string { return "labels" }

func (l labels) Set(text string) error {
	for pair := range strings.SplitSeq(text, ",") {
		if pair == "" {
			continue
		}
		key, value, _ := strings.Cut(pair, "=")
		l[strings.TrimSpace(key)] = strings.TrimSpace(value)
	}
	return nil
}

// versionFlag is --version, --version=raw or --version=false.
type versionFlag string

const (
	versionTrue versionFlag = "true"
	versionRaw  versionFlag = "raw"
)

func (v *versionFlag) String() string { return string(*v) }

func (v *versionFlag) Type() string { return "version" }

func (v *versionFlag) Set(text string) error {
	if text == string(versionRaw) {
		*v = versionRaw
		return nil
	}
	wanted, err := strconv.ParseBool(text)
	if err != nil {
		return errors.New("must be true, false or raw")
	}
	*v = ""
	if wanted {
		*v = versionTrue
	}
	return nil
}
