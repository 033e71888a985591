// Whose key a request has. /etc/gateway/keys/keys has a line `NAME SHA256HEX` for each key, the
// digest of the whole key. It is read for every request: replacing the file rotates keys at once.
//
// How long a comparison takes tells nothing about a key. What is compared are digests, never keys;
// they are blinded by an HMAC with a secret of this process, so that nobody outside can choose what
// they begin with; all bytes of all keys are compared, whatever is found on the way.
import fs from 'fs';
import crypto from 'crypto';

const FILE = '/etc/gateway/keys/keys';
const LINE = /^([A-Za-z0-9._-]{1,64})[ \t]+([0-9a-f]{64})$/;
// A secret for as long as this configuration is loaded: 244 random bits from the kernel.
const SECRET = fs.readFileSync('/proc/sys/kernel/random/uuid', 'utf8')
    + fs.readFileSync('/proc/sys/kernel/random/uuid', 'utf8');

function name(request) {
    const given = presented(request.headersIn);
    if (given === '') {
        return '';
    }
    const mine = blinded(crypto.createHash('sha256').update(given).digest('hex'));
    let found = '';
    read(request).forEach((key) => {
        if (equal(blinded(key.digest), mine)) {
            found = key.name;
        }
    });
    return found;
}

// `Authorization: Bearer KEY` as OpenAI's clients send it, or `x-api-key: KEY` as Anthropic's do.
function presented(headers) {
    const bearer = /^Bearer +(\S+) *$/i.exec(headers['Authorization'] || '');
    return bearer ? bearer[1] : headers['x-api-key'] || '';
}

function read(request) {
    let text;
    try {
        text = fs.readFileSync(FILE, 'utf8');
    } catch (error) {
        request.error(`keys: ${FILE} cannot be read, so nobody gets in: ${error.message}`);
        return [];
    }
    const keys = [];
    text.split('\n').forEach((line, number) => {
        const plain = line.trim();
        if (plain === '' || plain[0] === '#') {
            return;
        }
        const match = LINE.exec(plain);
        if (match) {
            keys.push({ name: match[1], digest: match[2] });
        } else {
            request.error(`keys: ${FILE} line ${number + 1} is not NAME SHA256HEX; it is left out`);
        }
    });
    return keys;
}

function blinded(digest) {
    return crypto.createHmac('sha256', SECRET).update(digest).digest('hex');
}

function equal(a, b) {
    let different = a.length ^ b.length;
    for (let i = 0; i < a.length; i++) {
        different |= a.charCodeAt(i) ^ b.charCodeAt(i);
    }
    return different === 0;
}

export default { name };
