package podlabels

import "k8s.io/apimachinery/pkg/api/resource"

// The types here are the types of restartFields at the time when the hash was introduced. The types of k8s.io/api get
// new fields with new versions. Stored pods may already have such a field, which is dropped when they are decoded: with
// the API's types, an upgrade that decodes it would change the hash of running containers, and restart them. The hash
// is on running containers, so neither the fields here, nor their order and names, nor the conditions for omitting them
// may change.

type hashedContainer struct {
	Name                     string                       `json:"n"`
	Image                    string                       `json:"i,omitempty"`
	Command                  []string                     `json:"c,omitempty"`
	Args                     []string                     `json:"a,omitempty"`
	WorkingDir               string                       `json:"w,omitempty"`
	Ports                    []hashedPort                 `json:"p,omitempty"`
	EnvFrom                  []hashedEnvFrom              `json:"ef,omitempty"`
	Env                      []hashedEnv                  `json:"e,omitempty"`
	Limits                   map[string]resource.Quantity `json:"l,omitempty"`
	Requests                 map[string]resource.Quantity `json:"r,omitempty"`
	VolumeMounts             []hashedVolumeMount          `json:"vm,omitempty"`
	VolumeDevices            []hashedVolumeDevice         `json:"vd,omitempty"`
	TerminationMessagePath   string                       `json:"tp,omitempty"`
	TerminationMessagePolicy string                       `json:"to,omitempty"`
	SecurityContext          *hashedSecurityContext       `json:"s,omitempty"`
	Stdin                    bool                         `json:"si,omitempty"`
	StdinOnce                bool                         `json:"so,omitempty"`
	TTY                      bool                         `json:"t,omitempty"`
}

type hashedPort struct {
	Name          string `json:"name,omitempty"`
	HostPort      int32  `json:"hostPort,omitempty"`
	ContainerPort int32  `json:"containerPort"`
	Protocol      string `json:"protocol,omitempty"`
	HostIP        string `json:"hostIP,omitempty"`
}

type hashedEnvFrom struct {
	Prefix       string        `json:"prefix,omitempty"`
	ConfigMapRef *hashedObject `json:"configMapRef,omitempty"`
	SecretRef    *hashedObject `json:"secretRef,omitempty"`
}

type hashedObject struct {
	Name     string `json:"name,omitempty"`
	Optional *bool  `json:"optional,omitempty"`
}

type hashedEnv struct {
	Name      string           `json:"name"`
	Value     string           `json:"value,omitempty"`
	ValueFrom *hashedEnvSource `json:"valueFrom,omitempty"`
}

type hashedEnvSource struct {
	FieldRef         *hashedFieldRef         `json:"fieldRef,omitempty"`
	ResourceFieldRef *hashedResourceFieldRef `json:"resourceFieldRef,omitempty"`
	ConfigMapKeyRef  *hashedKeyRef           `json:"configMapKeyRef,omitempty"`
	SecretKeyRef     *hashedKeyRef           `json:"secretKeyRef,omitempty"`
	FileKeyRef       *hashedFileKeyRef       `json:"fileKeyRef,omitempty"`
}

type hashedFieldRef struct {
	APIVersion string `json:"apiVersion,omitempty"`
	FieldPath  string `json:"fieldPath"`
}

type hashedResourceFieldRef struct {
	ContainerName string            `json:"containerName,omitempty"`
	Resource      string            `json:"resource"`
	Divisor       resource.Quantity `json:"divisor"`
}

type hashedKeyRef struct {
	Name     string `json:"name,omitempty"`
	Key      string `json:"key"`
	Optional *bool  `json:"optional,omitempty"`
}

type hashedFileKeyRef struct {
	VolumeName string `json:"volumeName"`
	Path       string `json:"path"`
	Key        string `json:"key"`
	Optional   *bool  `json:"optional,omitempty"`
}

type hashedVolumeMount struct {
	Name              string   `json:"name"`
	ReadOnly          bool     `json:"readOnly,omitempty"`
	RecursiveReadOnly *string  `json:"recursiveReadOnly,omitempty"`
	MountPath         string   `json:"mountPath"`
	SubPath           string   `json:"subPath,omitempty"`
	MountPropagation  *string  `json:"mountPropagation,omitempty"`
	SubPathExpr       string   `json:"subPathExpr,omitempty"`
	BindMountOptions  []string `json:"bindMountOptions,omitempty"`
}

type hashedVolumeDevice struct {
	Name       string `json:"name"`
	DevicePath string `json:"devicePath"`
}

type hashedSecurityContext struct {
	Capabilities             *hashedCapabilities `json:"capabilities,omitempty"`
	Privileged               *bool               `json:"privileged,omitempty"`
	SELinuxOptions           *hashedSELinux      `json:"seLinuxOptions,omitempty"`
	WindowsOptions           *hashedWindows      `json:"windowsOptions,omitempty"`
	RunAsUser                *int64              `json:"runAsUser,omitempty"`
	RunAsGroup               *int64              `json:"runAsGroup,omitempty"`
	RunAsNonRoot             *bool               `json:"runAsNonRoot,omitempty"`
	ReadOnlyRootFilesystem   *bool               `json:"readOnlyRootFilesystem,omitempty"`
	AllowPrivilegeEscalation *bool               `json:"allowPrivilegeEscalation,omitempty"`
	ProcMount                *string             `json:"procMount,omitempty"`
	SeccompProfile           *hashedProfile      `json:"seccompProfile,omitempty"`
	AppArmorProfile          *hashedProfile      `json:"appArmorProfile,omitempty"`
}

type hashedCapabilities struct {
	Add  []string `json:"add,omitempty"`
	Drop []string `json:"drop,omitempty"`
}

type hashedSELinux struct {
	User  string `json:"user,omitempty"`
	Role  string `json:"role,omitempty"`
	Type  string `json:"type,omitempty"`
	Level string `json:"level,omitempty"`
}

type hashedWindows struct {
	GMSACredentialSpecName *string `json:"gmsaCredentialSpecName,omitempty"`
	GMSACredentialSpec     *string `json:"gmsaCredentialSpec,omitempty"`
	RunAsUserName          *string `json:"runAsUserName,omitempty"`
	HostProcess            *bool   `json:"hostProcess,omitempty"`
}

type hashedProfile struct {
	Type             string  `json:"type"`
	LocalhostProfile *string `json:"localhostProfile,omitempty"`
}
