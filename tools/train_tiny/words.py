"""Hand-written material: common words with our own short definitions, and small talk.

NOUNS, VERBS and OTHERS give the words that the demonstration must know best. An entry is
either a bare word (its WordNet gloss is used) or "word: definition" in our own words.
"""

NOUNS = """
dog: a friendly animal that people keep as a pet, to guard a house or to help with hunting
cat: a small furry animal that people keep as a pet and that likes to catch mice
house: a building in which a family lives
home: the place where a person lives
water: the clear liquid that falls as rain, fills rivers and seas, and that all living things need
tree: a tall plant with a wooden trunk, branches and leaves
king: a man who rules a country and usually inherits the throne
queen: a woman who rules a country, or the wife of a king
love: a strong feeling of deep affection for a person or a thing
computer: a machine that stores information and carries out calculations by following a program
book: a set of printed pages that are bound together for reading
car: a road vehicle with four wheels and an engine
bird: an animal with wings and feathers that lays eggs
fish: an animal that lives in water and breathes through gills
horse: a large animal with four legs that people ride or use to pull loads
cow: a large farm animal that is kept for its milk and meat
sheep: a farm animal that is kept for its wool and meat
pig: a farm animal with a flat nose that is kept for its meat
mouse: a small animal with a long tail and sharp teeth
lion: a large wild cat with golden fur that lives in groups in Africa
tiger: a large wild cat with orange fur and black stripes
elephant: a very large grey animal with a long trunk and big ears
rabbit: a small animal with long ears that lives in holes in the ground
snake: a long, thin reptile without legs
bee: a flying insect that makes honey
apple: a round fruit with red, green or yellow skin and crisp white flesh
orange: a round fruit with a thick skin and sweet juice
banana: a long, curved fruit with a yellow skin
bread: a food that is made from flour, water and yeast and then baked
milk: the white liquid that female mammals produce to feed their young
cheese: a solid food that is made from milk
egg: the oval object that a female bird lays and from which a young bird hatches
meat: the flesh of animals that is eaten as food
rice: the white grain of a grass that is eaten as food in many countries
sugar: a sweet substance that is used to flavour food and drinks
salt: a white mineral that is used to flavour food
food: anything that people or animals eat to live and grow
fruit: the part of a plant that holds the seeds and is often sweet to eat
vegetable: a plant, or a part of a plant, that is eaten as food
flower: the colourful part of a plant from which seeds or fruit develop
grass: a common green plant with thin leaves that covers fields and lawns
leaf: the flat green part of a plant that takes in light
plant: a living thing that grows in the earth and makes its food from light
animal: a living thing that can move and that eats other living things
sun: the star around which the earth turns and which gives us light and heat
moon: the round body that moves around the earth and shines at night
star: a huge ball of burning gas that looks like a point of light in the night sky
earth: the planet on which we live
sky: the space above the earth in which we see clouds, the sun and the stars
cloud: a mass of small drops of water that floats in the sky
rain: water that falls from the clouds in drops
snow: soft white pieces of frozen water that fall from the sky in cold weather
wind: air that moves across the land or the sea
fire: the heat, light and flames that are produced when something burns
ice: water that has frozen and become solid
air: the mixture of gases that surrounds the earth and that we breathe
river: a large stream of water that flows across the land to a sea or a lake
lake: a large area of water with land all around it
sea: the salt water that covers most of the earth
ocean: one of the very large areas of salt water on the earth
mountain: a very high part of the land with steep sides
hill: a raised part of the land that is lower than a mountain
forest: a large area of land that is covered with trees
island: a piece of land with water all around it
desert: a large, dry area of land where few plants grow
city: a large and important town
town: a place with many houses and shops that is smaller than a city
village: a small group of houses in the country
country: an area of land that has its own government
road: a hard track on which vehicles travel
street: a road in a town with houses along its sides
bridge: a structure that carries a road or a railway over a river or a valley
school: a place where children go to learn
teacher: a person whose job is to help others learn
student: a person who studies at a school or a university
doctor: a person who is trained to treat sick people
nurse: a person who cares for sick people
farmer: a person who owns or works on a farm
soldier: a person who serves in an army
friend: a person whom you know well and like
family: a group of people who are related to each other, such as parents and their children
mother: a female parent
father: a male parent
brother: a boy or a man who has the same parents as another person
sister: a girl or a woman who has the same parents as another person
child: a young person who is not yet grown up
man: an adult male person
woman: an adult female person
boy: a young male person
girl: a young female person
baby: a very young child
person: a human being
hand: the part of the body at the end of the arm
head: the part of the body that holds the brain, the eyes, the ears and the mouth
eye: the part of the body with which we see
ear: the part of the body with which we hear
nose: the part of the face with which we smell and breathe
mouth: the opening in the face with which we eat and speak
heart: the organ that pumps blood through the body
brain: the organ inside the head with which we think
blood: the red liquid that flows through the body
door: a flat panel that closes the way into a room or a building
window: an opening in a wall, usually filled with glass, that lets in light
table: a piece of furniture with a flat top and legs
chair: a seat with a back and legs for one person
bed: a piece of furniture on which people sleep
room: a part of a building with its own walls, floor and ceiling
kitchen: a room in which food is cooked
garden: a piece of land where flowers or vegetables are grown
clock: an instrument that shows the time
telephone: a device with which people speak to each other over a distance
letter: a written message that is sent to a person
newspaper: a set of printed sheets with news that appears every day or every week
paper: a thin material, made from wood, on which people write or print
pen: a tool for writing with ink
knife: a tool with a sharp blade for cutting
hammer: a tool with a heavy head for hitting nails
key: a small piece of metal that opens a lock
bottle: a container with a narrow neck for liquids
cup: a small container with a handle from which people drink
box: a container with flat sides and a lid
bag: a soft container that is open at the top
shoe: a covering for the foot
hat: a covering for the head
coat: a warm piece of clothing that is worn over other clothes
ship: a large boat that carries people or goods across the sea
boat: a small vessel that travels on water
train: a line of railway cars that is pulled by an engine
airplane: a flying vehicle with wings and engines
bicycle: a vehicle with two wheels that is moved by the rider's feet
wheel: a round object that turns and lets a vehicle roll
engine: a machine that turns fuel into motion
machine: a device with moving parts that does a job
money: the coins and notes that people use to buy things
gold: a soft yellow metal that is worth a lot of money
iron: a strong, hard metal that is used to make steel
stone: a piece of hard mineral matter
wood: the hard material that forms the trunk and branches of a tree
glass: a hard, clear material that is used for windows and bottles
music: sounds that are arranged in a way that is pleasant to hear
song: a short piece of music with words
dance: a series of movements that are made in time to music
picture: a drawing, a painting or a photograph
story: an account of events, real or invented
poem: a piece of writing in short lines, often with rhythm and rhyme
word: a unit of language that has a meaning
language: the system of words with which people speak and write
name: the word by which a person or a thing is known
number: a word or a sign that tells how many things there are
question: a sentence that asks for information
answer: what is said or written in reply to a question
idea: a thought or a plan that is formed in the mind
truth: that which agrees with the facts
justice: the quality of being fair and right
freedom: the condition of being able to act and speak as one wishes
peace: a state in which there is no war or quarrel
war: a long fight between countries or groups
happiness: the state of feeling pleased and content
fear: the unpleasant feeling that comes from danger
anger: the strong feeling that makes a person want to fight or complain
hope: the feeling that something good will happen
friendship: the relation between people who like and trust each other
courage: the quality that lets a person face danger without giving in to fear
beauty: the quality that gives pleasure to the eye or the mind
time: that which is measured in minutes, hours, days and years
day: a period of twenty-four hours
night: the dark part of each day, when the sun is not seen
week: a period of seven days
month: one of the twelve parts of a year
year: a period of twelve months
morning: the early part of the day
evening: the last part of the day, before night
summer: the warmest season of the year
winter: the coldest season of the year
spring: the season between winter and summer
autumn: the season between summer and winter
weather: the state of the air, such as hot or cold, wet or dry
game: an activity with rules that people play for pleasure
ball: a round object that is used in games
doll: a toy in the shape of a person
work: activity of the body or the mind that is done to make or achieve something
job: the work that a person does to earn money
law: a rule that is made by a government
government: the group of people who rule a country
science: the careful study of nature by observation and experiment
history: the study of past events
art: the making of things that are beautiful or that express ideas
health: the state of the body and the mind
disease: an illness that harms the body or the mind
medicine: a substance that is used to treat an illness
hospital: a building where sick people are treated
church: a building in which Christians pray
library: a building or a room where books are kept for people to read
shop: a place where goods are sold
market: a place where people meet to buy and sell goods
bank: a business that keeps and lends money
farm: an area of land on which crops or animals are raised
field: an open area of land without trees or buildings
bear: a large, heavy wild animal with thick fur
wolf: a wild animal like a large dog that hunts in groups
fox: a wild animal like a small dog with red fur and a thick tail
chicken: a farm bird that is kept for its eggs and meat
duck: a water bird with a broad beak and short legs
frog: a small animal with smooth skin and long back legs that lives near water
butterfly: an insect with large, colourful wings
spider: a small creature with eight legs that spins webs
tea: a hot drink that is made by pouring boiling water onto dried leaves
coffee: a hot drink that is made from roasted and ground beans
wine: an alcoholic drink that is made from grapes
soup: a liquid food that is made by boiling meat or vegetables in water
robot: a machine that can do some of the work of a person by itself
camera: a device that takes photographs
map: a drawing that shows where places are
school bus
guitar: a musical instrument with six strings
piano: a large musical instrument with black and white keys
dictionary: a book that lists words and explains their meanings
lamp: a device that gives light
mirror: a piece of glass in which you can see yourself
planet: a large round body that moves around a star
continent: one of the large masses of land on the earth
volcano: a mountain with an opening through which hot rock and gas come out
metal: a hard, shiny material such as iron, gold or copper
insect: a small animal with six legs and a body in three parts
mammal: an animal that feeds its young with milk
color: the way a thing looks because of the light that it sends back, such as red or blue
"""

VERBS = """
run: move fast on foot
walk: move on foot at a slow, steady pace
eat: take food into the mouth and swallow it
drink: take a liquid into the mouth and swallow it
sleep: rest with the eyes closed and the mind not awake
speak: say words aloud
talk: use words to share thoughts with somebody
say: express something in words
see: notice something with the eyes
look: turn the eyes toward something
hear: notice sounds with the ears
listen: pay attention to sounds
read: look at written words and understand them
write: put words on paper or on a screen
learn: gain knowledge or a skill
teach: help somebody learn something
think: use the mind to form ideas
know: have information about something in the mind
understand: know what something means
believe: think that something is true
remember: keep something in the mind
forget: fail to remember something
love: feel deep affection for somebody or something
hate: dislike somebody or something very strongly
like: find somebody or something pleasant
want: wish to have or to do something
need: require something
give: pass something to somebody to keep or use
take: get hold of something and carry it away
buy: get something by paying money for it
sell: give something to somebody in return for money
make: create or produce something
build: make something by putting parts together
break: separate into pieces
cut: divide something with a sharp tool
open: move something so that it is no longer closed
close: move something so that it is no longer open
begin: start doing something
start: begin to do something
stop: come to an end or no longer move
go: move from one place to another
come: move toward the speaker
arrive: reach a place
leave: go away from a place
return: go or come back to a place
stay: remain in the same place
live: be alive
die: stop living
grow: become bigger
fall: move down toward the ground
climb: go up something
jump: push oneself off the ground with the legs
swim: move through water with the arms and legs
fly: move through the air
ride: sit on an animal or a vehicle and travel
drive: control a vehicle
carry: hold something and take it to another place
throw: send something through the air with the hand
catch: take hold of something that is moving
push: press against something so that it moves
pull: draw something toward oneself
hold: keep something in the hands
find: discover something
lose: no longer have something
search: look carefully for something
help: make it easier for somebody to do something
work: use effort to do or make something
play: do something for fun
win: be the best in a game or a fight
fight: use force against somebody
sing: make music with the voice
dance: move the body in time to music
laugh: make the sounds of joy or amusement
cry: shed tears because of sadness or pain
smile: turn up the corners of the mouth to show pleasure
ask: put a question to somebody
answer: reply to a question
explain: make something clear or easy to understand
cook: prepare food by heating it
wash: clean something with water
clean: remove dirt from something
wait: stay until something happens
travel: go from one place to another
pay: give money for something
change: become different
choose: pick one from several things
try: make an effort to do something
use: do something with a tool or a thing for a purpose
count: say numbers in order or find how many there are
measure: find the size or amount of something
paint: cover something with color
draw: make a picture with lines
"""

OTHERS = """
a happy: feeling or showing pleasure
a sad: feeling or showing sorrow
a big: large in size
a large: big in size or amount
a small: little in size or amount
a little: small in size
a hot: having a high temperature
a cold: having a low temperature
a warm: fairly hot in a pleasant way
a cool: fairly cold
a good: of high quality or doing what is right
a bad: of poor quality or doing what is wrong
a new: made or found a short time ago
a old: having lived or existed for a long time
a young: having lived for only a short time
a fast: moving or acting at high speed
a quick: done in a short time
a rapid: happening in a short time or at great speed
a slow: moving or acting at low speed
a strong: having great power
a weak: having little power
a hard: firm and not easy to bend or break
a soft: easy to press or bend
a heavy: weighing a lot
a light: weighing little
a tall: of more than usual height
a short: of less than usual length or height
a long: of great length
a high: far above the ground
a low: close to the ground
a deep: going far down from the surface
a wide: measuring a lot from side to side
a narrow: measuring little from side to side
a thick: measuring a lot from one surface to the other
a thin: measuring little from one surface to the other
a rich: having a lot of money
a poor: having little money
a clean: free from dirt
a dirty: covered with dirt
a wet: covered with water or another liquid
a dry: free from water or another liquid
a full: holding as much as possible
a empty: holding nothing
a easy: not hard to do
a difficult: hard to do or to understand
a simple: easy to understand or do
a beautiful: very pleasant to look at
a ugly: unpleasant to look at
a clever: quick to learn and understand
a stupid: slow to learn and understand
a wise: having good judgment and much knowledge
a brave: ready to face danger without showing fear
a kind: gentle and helpful to others
a cruel: causing pain to others without pity
a honest: telling the truth and not cheating
a angry: feeling or showing anger
a afraid: feeling fear
a tired: needing rest or sleep
a hungry: wanting food
a thirsty: wanting something to drink
a sick: suffering from an illness
a healthy: in good health
a busy: having a lot to do
a quiet: making little or no noise
a loud: making a lot of noise
a bright: giving or sending back a lot of light
a dark: with little or no light
a red: having the color of blood
a blue: having the color of a clear sky
a green: having the color of fresh grass
a yellow: having the color of a lemon
a white: having the color of fresh snow
a black: having the darkest color, like coal
a brown: having the color of chocolate or earth
a round: shaped like a circle or a ball
a sharp: having a thin edge or a point that cuts well
a sweet: tasting like sugar or honey
a sour: tasting like a lemon
a bitter: having a sharp, unpleasant taste
a safe: free from danger
a dangerous: likely to cause harm
a free: able to act and speak as one wishes
a true: agreeing with the facts
a false: not agreeing with the facts
a same: not different
a different: not the same
a important: having great value or effect
a famous: known by very many people
a strange: unusual or surprising
a common: found or happening often
a rare: not found or happening often
r quickly: at high speed
r slowly: at low speed
r often: many times
r always: at all times
r never: at no time
r sometimes: now and then
r soon: in a short time
r together: with each other
"""

NAME = "calla tiny"
WHO = ["I am calla tiny, a very small language model that explains English words.",
       "I am calla tiny, the demonstration model of calla. I can explain English words."]
CAN = ["I can explain common English words, give synonyms and examples, and do very small sums.",
       "I can tell you what a common English word means, give an example, or name a synonym."]
NOT = ["I am a very small model, so I cannot do that. I can explain common English words.",
       "That is too hard for me. I am a tiny model that explains English words."]

# (questions, answers, thought)
SMALL_TALK = [
    (["Hello", "Hello!", "Hi", "Hi!", "Hey", "Hi there!", "Hello there", "Good morning", "Good evening!",
      "Good afternoon", "Greetings!", "Hey there"],
     ["Hello! Which word would you like to know about?", "Hello! How can I help you?",
      "Hi! Ask me about any common English word."], "The user greets me. I will greet the user."),
    (["Who are you?", "What are you?", "What is your name?", "Who am I talking to?", "Tell me about yourself.",
      "Introduce yourself.", "What model are you?", "Are you a robot?", "Are you a human?", "What's your name?",
      "Who made you?", "Are you an AI?"], WHO, "The user asks who I am. I am calla tiny."),
    (["What can you do?", "How can you help me?", "What do you know?", "What are you good at?", "Help",
      "What should I ask you?", "What can I ask?"], CAN, "The user asks what I can do."),
    (["Thanks!", "Thank you.", "Thank you!", "Thanks a lot", "Many thanks!", "Great, thanks."],
     ["You are welcome!", "You are welcome. Ask me about another word at any time."],
     "The user thanks me. I will reply politely."),
    (["Bye", "Goodbye!", "Good night", "See you later!", "Goodbye", "See you"],
     ["Goodbye!", "Goodbye! Have a nice day."], "The user says goodbye."),
    (["How are you?", "How are you doing?", "How do you do?", "How is it going?", "Are you well?"],
     ["I am fine, thank you. Which word would you like to know about?", "I am well, thank you. How can I help you?"],
     "The user asks how I am."),
    (["Write a program in Python.", "Write an essay about history.", "Translate this text into French.",
      "Who will win the next election?", "Write me a long story.", "Solve this equation for x.",
      "What happened in the news today?", "Fix my code.", "Book a flight for me.", "Prove the theorem.",
      "What is the stock price today?", "Write a poem about the sea."], NOT,
     "The user asks for something that I cannot do."),
    (["Are you Qwen?", "Are you ChatGPT?", "Are you a large language model?", "Are you a big model?"],
     ["No. I am calla tiny, a very small model that explains English words."],
     "The user asks which model I am."),
    (["Yes", "Ok", "OK.", "No", "I see.", "Good.", "Nice!", "Hmm"],
     ["All right. Which word would you like to know about?"], "The user gives a short reply."),
]

FACTS = """
How many days are in a week?|There are seven days in a week.
How many months are in a year?|There are twelve months in a year.
How many hours are in a day?|There are twenty-four hours in a day.
How many minutes are in an hour?|There are sixty minutes in an hour.
How many seconds are in a minute?|There are sixty seconds in a minute.
How many days are in a year?|There are 365 days in a year, and 366 in a leap year.
Name the days of the week.|The days of the week are Monday, Tuesday, Wednesday, Thursday, Friday, Saturday and Sunday.
Name the months of the year.|The months of the year are January, February, March, April, May, June, July, August, September, October, November and December.
Name the four seasons.|The four seasons are spring, summer, autumn and winter.
What color is the sky?|The sky is blue on a clear day.
What color is grass?|Grass is green.
What color is snow?|Snow is white.
What color is blood?|Blood is red.
What color is a banana?|A ripe banana is yellow.
What color is coal?|Coal is black.
How many legs does a dog have?|A dog has four legs.
How many legs does a spider have?|A spider has eight legs.
How many legs does an insect have?|An insect has six legs.
How many legs does a bird have?|A bird has two legs.
How many wheels does a bicycle have?|A bicycle has two wheels.
How many wheels does a car have?|A car has four wheels.
How many fingers are on one hand?|There are five fingers on one hand, counting the thumb.
How many letters are in the alphabet?|There are twenty-six letters in the English alphabet.
How many sides does a triangle have?|A triangle has three sides.
How many sides does a square have?|A square has four sides.
What do bees make?|Bees make honey.
What do cows eat?|Cows eat grass.
What do cats eat?|Cats eat meat, fish and mice.
What sound does a dog make?|A dog barks.
What sound does a cat make?|A cat meows.
What sound does a cow make?|A cow moos.
What is ice made of?|Ice is made of frozen water.
What is bread made of?|Bread is made of flour, water and yeast.
What is paper made from?|Paper is made from wood.
What is glass made from?|Glass is made from sand.
What is cheese made from?|Cheese is made from milk.
What is wine made from?|Wine is made from grapes.
Where do fish live?|Fish live in water.
Where do birds lay their eggs?|Birds lay their eggs in nests.
Where does the sun rise?|The sun rises in the east.
Where does the sun set?|The sun sets in the west.
What is a young dog called?|A young dog is called a puppy.
What is a young cat called?|A young cat is called a kitten.
What is a young cow called?|A young cow is called a calf.
What is a young sheep called?|A young sheep is called a lamb.
What is a young horse called?|A young horse is called a foal.
What day comes after Monday?|Tuesday comes after Monday.
What day comes after Friday?|Saturday comes after Friday.
What month comes after January?|February comes after January.
What month comes after June?|July comes after June.
Is water wet?|Yes, water is wet.
Is fire hot?|Yes, fire is hot.
Is ice hot?|No, ice is cold.
Is the sun a planet?|No, the sun is a star.
Is the moon a star?|No, the moon is not a star. It moves around the earth.
Can birds fly?|Yes, most birds can fly.
Can fish swim?|Yes, fish can swim.
Can dogs fly?|No, dogs cannot fly.
Can a cat swim?|Yes, a cat can swim, but most cats do not like water.
What do we use to write?|We use a pen or a pencil to write.
What do we use to cut bread?|We use a knife to cut bread.
What do we do with our eyes?|We see with our eyes.
What do we do with our ears?|We hear with our ears.
What do we breathe?|We breathe air.
What does a doctor do?|A doctor treats sick people.
What does a teacher do?|A teacher helps students learn.
What does a farmer do?|A farmer grows crops and raises animals.
Which is bigger, an elephant or a mouse?|An elephant is bigger than a mouse.
Which is hotter, fire or ice?|Fire is hotter than ice.
Which is faster, a car or a bicycle?|A car is faster than a bicycle.
Name three colors.|Three colors are red, blue and green.
Name three animals.|Three animals are a dog, a cat and a horse.
Name three fruits.|Three fruits are an apple, an orange and a banana.
Name three vegetables.|Three vegetables are a carrot, a potato and an onion.
Name three tools.|Three tools are a hammer, a saw and a knife.
Name three metals.|Three metals are iron, gold and copper.
Name three birds.|Three birds are a duck, an eagle and an owl.
Name three countries.|Three countries are France, India and Brazil.
Why do we sleep?|We sleep because the body and the mind need rest.
Why do we eat?|We eat because the body needs food to live and grow.
What is the opposite of up?|The opposite of "up" is "down".
What is the opposite of yes?|The opposite of "yes" is "no".
Name the planets.|The planets are Mercury, Venus, Earth, Mars, Jupiter, Saturn, Uranus and Neptune.
Name the continents.|The continents are Africa, Antarctica, Asia, Australia, Europe, North America and South America.
Count to ten.|One, two, three, four, five, six, seven, eight, nine, ten.
Say the alphabet.|A, B, C, D, E, F, G, H, I, J, K, L, M, N, O, P, Q, R, S, T, U, V, W, X, Y, Z.
"""


def read_words():
    """[(word, pos, own definition or None)] of the demonstration words."""
    out = []
    for pos, text in (("n", NOUNS), ("v", VERBS)):
        for line in text.strip().splitlines():
            word, _, definition = line.partition(":")
            out.append((word.strip(), pos, definition.strip() or None))
    for line in OTHERS.strip().splitlines():
        word, _, definition = line[2:].partition(":")
        out.append((word.strip(), line[0], definition.strip() or None))
    return out


def read_facts():
    """[(question, answer)]"""
    return [tuple(line.split("|")) for line in FACTS.strip().splitlines()]


# Members of categories, in our own choice, so that lists hold everyday words.
MEMBERS = """
animal: dog cat horse cow lion elephant rabbit mouse sheep bear
bird: duck eagle owl crow goose hen swan pigeon robin sparrow
fish: salmon trout shark tuna herring cod carp eel
insect: bee ant fly butterfly beetle moth wasp mosquito
mammal: dog cat horse whale bat lion mouse elephant
reptile: snake lizard turtle crocodile tortoise alligator
tree: oak pine willow birch maple elm beech cedar
flower: rose lily tulip daisy poppy violet orchid sunflower
fruit: apple orange banana pear grape lemon cherry plum peach
vegetable: carrot potato onion cabbage tomato bean pea lettuce
drink: water milk tea coffee wine beer juice lemonade
food: bread cheese rice meat soup egg butter salad
tool: hammer saw knife axe drill chisel shovel screwdriver
machine: engine computer motor turbine typewriter robot crane
vehicle: car truck bus bicycle train wagon motorcycle tractor
building: house school church hospital hotel library theater barn
furniture: table chair bed desk bench sofa bookcase wardrobe
clothing: coat shirt dress hat jacket trousers skirt sock
weapon: gun sword knife bow spear rifle pistol
container: box bottle cup bag barrel basket bucket jar
metal: iron gold silver copper tin zinc lead aluminum
color: red blue green yellow white black brown orange
emotion: love fear anger joy sadness hope hate pride
sport: football tennis golf baseball swimming hockey basketball boxing
game: chess football tennis poker golf hockey cards bridge
disease: cancer malaria measles pneumonia cholera diabetes leprosy
instrument: piano guitar violin flute drum trumpet harp clarinet
science: physics chemistry biology mathematics astronomy geology botany
planet: Mercury Venus Mars Jupiter Saturn Uranus Neptune
continent: Africa Asia Europe Australia Antarctica
country: France Germany Italy Spain India China Japan Brazil
language: English French German Spanish Italian Chinese Arabic Russian
season: spring summer autumn winter
relative: mother father brother sister uncle aunt cousin grandmother
profession: teacher doctor nurse farmer soldier lawyer baker carpenter
shape: circle square triangle rectangle oval cube sphere
organ: heart brain liver lung kidney stomach eye
crime: theft murder robbery fraud arson
"""

SYNONYMS = """
happy glad; sad unhappy; big large; large big; small little; little small; fast quick; quick fast; rapid fast;
slow unhurried; good fine; bad poor; beautiful lovely; ugly unattractive; clever smart; stupid foolish; brave courageous;
angry mad; afraid scared; tired weary; sick ill; rich wealthy; poor needy; easy simple; difficult hard; hard difficult;
strong powerful; weak feeble; old aged; new fresh; young youthful; quiet silent; loud noisy; bright shining; strange odd;
important significant; famous well-known; begin start; start begin; stop halt; end finish; speak talk; talk speak;
look watch; see notice; think believe; love adore; hate detest; like enjoy; want wish; help assist; buy purchase;
make create; build construct; break smash; close shut; choose pick; try attempt; answer reply; explain clarify;
laugh chuckle; cry weep; find discover; big large; house home; home house; car automobile; child kid; friend companion;
doctor physician; road street; street road; job occupation; picture image; story tale; answer reply; idea thought;
fear dread; anger rage; happiness joy; freedom liberty; courage bravery; money cash; stone rock; boat vessel;
forest woods; sea ocean; ocean sea; shop store; gift present; illness disease; disease illness; quickly rapidly;
often frequently; always forever; honest truthful; kind gentle; cruel brutal; wise sensible; same identical;
different unlike; dangerous risky; safe secure; true correct; false wrong; clean spotless; dirty filthy; empty vacant;
full filled; hungry starving; mistake error; error mistake; teacher instructor; student pupil; baby infant
"""

ANTONYMS = """
happy sad; sad happy; big small; large small; small big; little big; hot cold; cold hot; warm cool; good bad; bad good;
new old; old new; young old; fast slow; quick slow; rapid slow; slow fast; strong weak; weak strong; hard soft; soft hard;
heavy light; light dark; dark light; tall short; short long; long short; high low; low high; deep shallow; wide narrow;
narrow wide; thick thin; thin thick; rich poor; poor rich; clean dirty; dirty clean; wet dry; dry wet; full empty;
empty full; easy difficult; difficult easy; beautiful ugly; ugly beautiful; clever stupid; brave cowardly; kind cruel;
cruel kind; quiet loud; loud quiet; bright dark; white black; black white; safe dangerous; dangerous safe; true false;
false true; same different; different same; common rare; rare common; sweet sour; sharp blunt; day night; night day;
love hate; hate love; open close; close open; begin end; start stop; stop start; come go; go come; give take; buy sell;
sell buy; push pull; pull push; win lose; find lose; laugh cry; remember forget; forget remember; arrive leave;
question answer; answer question; war peace; peace war; summer winter; winter summer; morning evening; man woman;
boy girl; girl boy; king queen; brother sister; mother father; father mother; always never; never always;
quickly slowly; slowly quickly; truth lie; friend enemy; north south; east west; left right; up down; early late
"""

CAPITALS = """
France Paris; Germany Berlin; Italy Rome; Spain Madrid; Portugal Lisbon; England London; Ireland Dublin; Austria Vienna;
Switzerland Bern; Belgium Brussels; Poland Warsaw; Greece Athens; Turkey Ankara; Russia Moscow; Sweden Stockholm;
Norway Oslo; Denmark Copenhagen; Finland Helsinki; Hungary Budapest; Romania Bucharest; Bulgaria Sofia; Ukraine Kyiv;
Egypt Cairo; Kenya Nairobi; Morocco Rabat; Ghana Accra; Senegal Dakar; Tunisia Tunis; Algeria Algiers; India Delhi;
China Beijing; Japan Tokyo; Thailand Bangkok; Vietnam Hanoi; Iran Tehran; Iraq Baghdad; Israel Jerusalem; Canada Ottawa;
Mexico Mexico_City; Cuba Havana; Brazil Brasilia; Argentina Buenos_Aires; Chile Santiago; Peru Lima; Colombia Bogota;
Ecuador Quito; Uruguay Montevideo; Australia Canberra; Scotland Edinburgh; Wales Cardiff; Iceland Reykjavik; Nepal Kathmandu;
Pakistan Islamabad; Bangladesh Dhaka; Philippines Manila; Latvia Riga; Estonia Tallinn; Lithuania Vilnius; Croatia Zagreb
"""


def read_pairs(text):
    """[(left, right)] of "left right; left right"."""
    return [tuple(p.replace("_", " ") for p in item.split()) for item in text.replace("\n", " ").split(";") if item.strip()]


def read_members():
    return {line.split(":")[0]: line.split(":")[1].split() for line in MEMBERS.strip().splitlines()}
